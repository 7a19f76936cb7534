"""The run's documents: what was written comes back, and nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from openclaw_tasks.checkpoint.documents import (
    BaseManifest,
    BaseNote,
    BaseObject,
    Claim,
    Degraded,
    Document,
    Floor,
    Holder,
    Pin,
    Process,
    Start,
)
from openclaw_tasks.checkpoint.lineage import BaseRef, GroupRef
from openclaw_tasks.errors import DamagedError, UsageError
from openclaw_tasks.storage.digested_json import read_digested, write_digested

PROCESS = Process(host="node1", boot="b00t", pid=4711, started=12345)
GROUP = GroupRef(epoch=1, writer="w1", seq=1, attempt=0, first=1, last=8, previous="", digest="ab" * 32, size=99)
BASE = BaseRef(epoch=1, writer="w1", step=0, verified=True)
START = Start(
    run="lm",
    epoch=2,
    writer="w2",
    n=5,
    m=2,
    target_uuids=("a", "b", "c", "d", "e"),
    parent="lm/start/1-w1.json",
    groups=(GROUP,),
    bases=(BASE,),
    skip=(7,),
    floor=0,
    end_step=8,
    reason="resume",
    job={"steps": 60, "clip_norm": 1.0},
    identity={"dataset": "cd" * 32},
    process=PROCESS,
)
DOCUMENTS: list[Document] = [
    START,
    Claim(run="lm", epoch=2, writer="w2", process=PROCESS),
    Holder(
        run="lm",
        epoch=2,
        writer="w2",
        counter=17,
        released=False,
        durable_step=8,
        agents=(PROCESS,),
        process=PROCESS,
    ),
    BaseManifest(
        run="lm",
        step=25,
        epoch=2,
        writer="w2",
        n=5,
        m=2,
        applied=24,
        objects=(
            BaseObject(
                name="params",
                attempt=0,
                object_bytes=100,
                object_digest="01" * 32,
                payload_bytes=80,
                payload_digest="23" * 32,
            ),
        ),
        plain={"lr": (0.1).hex()},
        weights_digest="45" * 32,
        state_digest="67" * 32,
    ),
    BaseNote(run="lm", step=25, epoch=2, writer="w2", mark="verified", facts={"replayed": 25}),
    Degraded(run="lm", epoch=2, writer="w2", sequence=3, first=17, last=24, attempt=1),
    Floor(run="lm", epoch=2, writer="w2", step=25),
    Pin(run="lm", id="p1", counter=3, bases=(BASE,), first=1, purpose="export", process=PROCESS),
]


def kind_of(document: Document) -> str:
    return type(document).__name__


@pytest.mark.parametrize("document", DOCUMENTS, ids=kind_of)
def test_a_document_comes_back_equal_and_of_one_spelling(document: Document) -> None:
    again = type(document).parse(document.to_bytes(), document.key)
    assert again == document
    assert again.to_bytes() == document.to_bytes()


@pytest.mark.parametrize("document", DOCUMENTS, ids=kind_of)
def test_a_document_under_another_key_is_refused(document: Document) -> None:
    for key in ("other" + document.key, document.key + "x", "lm/claim/99"):
        with pytest.raises(DamagedError, match="holds the document of"):
            type(document).parse(document.to_bytes(), key)


@pytest.mark.parametrize("document", DOCUMENTS, ids=kind_of)
def test_a_document_of_another_kind_is_refused(document: Document) -> None:
    for other in DOCUMENTS:
        if other is not document:
            with pytest.raises(DamagedError, match="not a"):
                type(document).parse(other.to_bytes(), document.key)


@pytest.mark.parametrize("document", DOCUMENTS, ids=kind_of)
def test_a_missing_retyped_or_extra_field_is_refused(document: Document) -> None:
    fields = read_digested(document.to_bytes(), "doc")
    for name in fields.keys() - {"format"}:
        without = {key: value for key, value in fields.items() if key != name}
        for changed in (without, {**fields, name: [["?"]]}):
            with pytest.raises(DamagedError):
                type(document).parse(write_digested(changed), document.key)
    with pytest.raises(DamagedError, match="extra"):
        type(document).parse(write_digested({**fields, "extra": 1}), document.key)


@pytest.mark.parametrize("document", DOCUMENTS, ids=kind_of)
def test_a_later_format_asks_for_an_upgrade(document: Document) -> None:
    fields = read_digested(document.to_bytes(), "doc")
    with pytest.raises(UsageError, match="upgrade"):
        type(document).parse(write_digested({**fields, "format": 2}), document.key)


def test_a_flipped_byte_is_damage_naming_the_key() -> None:
    data = bytearray(START.to_bytes())
    data[len(data) // 2] ^= 1
    with pytest.raises(DamagedError, match=r"^lm/start/2-w2\.json: "):
        Start.parse(data, START.key)


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields.update(epoch=True),
        lambda fields: fields.update(epoch=2.0),
        lambda fields: fields.update(epoch="2"),
        lambda fields: fields.update(epoch=0),
        lambda fields: fields.update(writer="../w2"),
        lambda fields: fields.update(skip=["7"]),
        lambda fields: fields["groups"][0].update(seq="1"),
        lambda fields: fields["groups"][0].update(extra=1),
        lambda fields: fields["groups"][0].pop("digest"),
        lambda fields: fields["process"].update(pid="1"),
    ],
)
def test_no_value_is_converted_on_reading(change: Callable[[dict[str, Any]], object]) -> None:
    fields = read_digested(START.to_bytes(), "doc")
    change(fields)
    with pytest.raises(DamagedError):
        Start.parse(write_digested(fields), START.key)


def test_every_kind_of_document_is_tested_here() -> None:
    assert {type(document) for document in DOCUMENTS} == set(Document.__subclasses__())
