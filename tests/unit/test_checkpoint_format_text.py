"""FORMAT.md names every field that is written, and its golden files exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import openclaw_tasks.checkpoint

FORMAT = (Path(openclaw_tasks.checkpoint.__file__).parent / "FORMAT.md").read_text(encoding="utf-8")
GOLDEN = Path(__file__).parents[1] / "golden" / "checkpoint"


def header_of(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    fields: dict[str, object] = json.loads(data[12 : 12 + int.from_bytes(data[8:12], "little")])
    return fields


def test_every_field_of_the_golden_files_is_described() -> None:
    fields = {*header_of(GOLDEN / "stripe-5-2.0"), *header_of(GOLDEN / "packed-bf16")}
    for path in GOLDEN.glob("*.json"):
        fields |= json.loads(path.read_bytes()).keys()
    described = set(re.findall(r"\w+", FORMAT))
    assert fields <= described


def test_every_kind_and_magic_is_described() -> None:
    kinds = {json.loads(path.read_bytes()).get("kind", "target.json") for path in GOLDEN.glob("*.json")}
    assert all(f"`{kind}`" in FORMAT for kind in kinds)
    assert all(magic in FORMAT for magic in ("`OCSTRIPE`", "`OCPACKED`"))
