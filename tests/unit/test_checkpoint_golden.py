"""The bytes on the targets are a promise: each format's golden files are written and read as ever.

A failing test here means that existing runs can no longer be read, or that older versions cannot read new ones.
If a format has to change, raise its version, keep reading the old one, and add files beside these:
`python tests/unit/test_checkpoint_golden.py` writes what is missing, and nothing over what is there.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import zstandard
from document_samples import DOCUMENTS

from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.documents import Document
from openclaw_tasks.checkpoint.pack import pack_group, unpack_group
from openclaw_tasks.checkpoint.paths import BaseName, GroupName, ObjectName
from openclaw_tasks.checkpoint.stripes import StripeIdentity, build_stripes, parse_stripe, rebuild
from openclaw_tasks.storage.digested_json import read_digested, write_digested
from openclaw_tasks.storage.targets import open_targets

GOLDEN = Path(__file__).parents[1] / "golden" / "checkpoint"
GROUP = GroupName(epoch=3, writer="w1", sequence=5, first=33, last=40, attempt=1)
OBJECT = ObjectName(BaseName(step=25, epoch=3, writer="w1"), "params", 0)
PAYLOAD = bytes(range(100)) * 3 + b"!"
RECORDS = [bytes(range(64)) * 5, b"", b"odd"]


def stripe_files() -> dict[str, bytes]:
    group = build_stripes(PAYLOAD, Code(5, 2), StripeIdentity("lm", GROUP, "bf16", "ab" * 32))
    (single,) = build_stripes(PAYLOAD, Code(1, 0), StripeIdentity("lm", OBJECT, None, None))
    return {**{f"stripe-5-2.{index}": stripe for index, stripe in enumerate(group)}, "stripe-1-0.0": single}


def document_files() -> dict[str, bytes]:
    return {f"{document.kind}.json": document.to_bytes() for document in DOCUMENTS}


@pytest.mark.parametrize("name", [*stripe_files(), *document_files()])
def test_the_same_bytes_are_written(name: str) -> None:
    assert (GOLDEN / name).read_bytes() == {**stripe_files(), **document_files()}[name]


def test_golden_stripes_are_read() -> None:
    files = {index: (GOLDEN / f"stripe-5-2.{index}").read_bytes() for index in (1, 3, 4)}
    rebuilt = rebuild("lm", GROUP, Code(5, 2), files)
    assert rebuilt.payload == PAYLOAD
    assert rebuilt.header.identity.previous_digest == "ab" * 32
    stripe = parse_stripe((GOLDEN / "stripe-1-0.0").read_bytes(), OBJECT.key("lm", 0), Code(1, 0))
    assert bytes(stripe.data) == PAYLOAD


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.kind)
def test_golden_documents_are_read(document: Document) -> None:
    assert type(document).parse((GOLDEN / f"{document.kind}.json").read_bytes(), document.key) == document


def split_packed(payload: bytes) -> tuple[bytes, bytes]:
    """What stands before the zstd frame, and what the frame holds. Frames differ between versions of zstd."""
    end = 12 + int.from_bytes(payload[8:12], "little")
    return payload[:end], zstandard.ZstdDecompressor().decompress(payload[end:])


def test_golden_groups_are_read() -> None:
    assert unpack_group((GOLDEN / "packed-bf16").read_bytes()) == RECORDS


def test_the_same_group_is_packed() -> None:
    golden = (GOLDEN / "packed-bf16").read_bytes()
    assert split_packed(golden) == split_packed(pack_group(RECORDS, planes=2))
    assert split_packed(golden)[1] == (b"".join(RECORDS)[0::2] + b"".join(RECORDS)[1::2])


def test_golden_target_identity_is_read_and_written(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    shutil.copy(GOLDEN / "target.json", tmp_path / "old" / "target.json")
    golden = (GOLDEN / "target.json").read_bytes()
    old = open_targets([f"file://{tmp_path}/old"], deadline_seconds=10.0)
    assert old.uuids == (json.loads(golden)["uuid"],)
    open_targets([f"file://{tmp_path}/new"], deadline_seconds=10.0, create=True)
    written = read_digested((tmp_path / "new" / "target.json").read_bytes(), "new")
    assert write_digested({**written, "uuid": old.uuids[0]}) == golden


def test_every_golden_file_is_small_and_tested() -> None:
    names = {path.name for path in GOLDEN.iterdir()}
    assert names == {*stripe_files(), *document_files(), "packed-bf16", "target.json"}
    assert max(path.stat().st_size for path in GOLDEN.iterdir()) < 20_000


def write_missing() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    files = {**stripe_files(), **document_files(), "packed-bf16": pack_group(RECORDS, planes=2)}
    files["target.json"] = write_digested({"format": 1, "uuid": "0123456789abcdef0123456789abcdef", "index": 0})
    for name, content in files.items():
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(content)


if __name__ == "__main__":
    write_missing()
