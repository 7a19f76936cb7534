"""The run's documents: what was written comes back, and nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from document_samples import DOCUMENTS, START

from openclaw_tasks.checkpoint.documents import Document, Start
from openclaw_tasks.errors import DamagedError, UsageError
from openclaw_tasks.storage.digested_json import read_digested, write_digested


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
