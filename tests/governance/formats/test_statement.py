"""In-toto Statements: one document, its subjects, its type."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Malformed
from govray.governance.formats import canonical_json
from govray.governance.formats.document import Count, Document
from govray.governance.formats.dsse import Envelope, sign_payload
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.statement import Subject, read, seal
from tests.support.table import each_row

SIGNER = LocalSigner.generate()


class Note(Document):
    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/test/note/v1"

    text: str
    count: Count
    remark: str | None = None


class Letter(Document):
    """The same fields under another type."""

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/test/letter/v1"

    text: str
    count: Count


NOTE = Note(text="a", count=3)
FILE = Subject.of("model.safetensors", "sha256:" + "1" * 64)
HEX = "0" * 64


def statement(**members: Any) -> bytes:
    """The payload that NOTE has, with members replaced, or removed where ``...``."""
    value = {
        "_type": "https://in-toto.io/Statement/v1",
        "predicate": {"text": "a", "count": "3"},
        "predicateType": Note.PREDICATE_TYPE,
        "subject": [{"name": "model.safetensors", "digest": {"sha256": "1" * 64}}],
    } | members
    return canonical_json.encode({key: item for key, item in value.items() if item is not ...})


def opened(payload: bytes, **options: str) -> Envelope:
    return Envelope.parse(sign_payload(payload, [SIGNER], **options))


def test_golden_payload() -> None:
    payload = Envelope.parse(seal(NOTE, [FILE], [SIGNER])).payload
    assert payload == statement()
    assert payload == (
        b'{"_type":"https://in-toto.io/Statement/v1","predicate":{"count":"3","text":"a"},'
        b'"predicateType":"https://govray.dev/test/note/v1","subject":[{"digest":{"sha256":"'
        + b"1" * 64
        + b'"},"name":"model.safetensors"}]}'
    )


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.integers(0, 2**63 - 1),
    st.lists(st.text("abc", min_size=1), min_size=1, unique=True),
)
def test_what_was_sealed_is_read(text: str, count: int, names: list[str]) -> None:
    note = Note(text=text, count=count)
    subjects = [Subject.of(name, canonical_json.sha256(name.encode())) for name in names]
    envelope = Envelope.parse(seal(note, subjects, [SIGNER]))
    sealed = read(Note, envelope)
    assert sealed.document == note
    assert sealed.subjects == tuple(subjects)
    assert sealed.payload == envelope.payload
    assert sealed.digest == canonical_json.sha256(envelope.payload)


def test_one_kind_never_passes_for_another() -> None:
    envelope = Envelope.parse(seal(Letter(text="a", count=3), [FILE], [SIGNER]))
    with pytest.raises(Malformed, match=r"letter/v1', not '.*note/v1'"):
        read(Note, envelope)


SUBJECT = {"name": "a", "digest": {"sha256": HEX}}


@each_row(
    ("payload", "names"),
    [
        (b"{}", "no in-toto Statement"),
        (b"[]", "no in-toto Statement"),
        (b"", "not JSON"),
        (statement() + b"\n", "canonical"),
        (statement(_type="https://in-toto.io/Statement/v0.1"), "_type"),
        (statement(_type=...), "_type"),
        (statement(type_="https://in-toto.io/Statement/v1"), "type_"),
        (statement(predicateType=...), "predicateType"),
        (statement(predicateType=1), "predicateType"),
        (statement(predicate=...), "no in-toto Statement"),
        (statement(predicate=[]), "object"),
        (statement(predicate={"text": "a", "count": 3}), "'count'"),
        (statement(predicate={"text": "a", "count": "3", "remark": None}), "null"),
        (statement(predicate={"text": "a", "count": "3", "x": 1}), "unknown field 'x'"),
        (statement(extra=1), "unknown field 'extra'"),
        (statement(subject=...), "subject"),
        (statement(subject=[]), "subject"),
        (statement(subject=[SUBJECT, SUBJECT]), "unique"),
        (statement(subject=[SUBJECT | {"uri": "x"}]), "unknown field"),
        (statement(subject=[SUBJECT | {"name": ""}]), "name"),
        (statement(subject=[SUBJECT | {"digest": {}}]), "digest"),
        (statement(subject=[SUBJECT | {"digest": {"sha1": "0" * 40}}]), "digest"),
        (statement(subject=[SUBJECT | {"digest": {"sha256": HEX, "sha512": HEX}}]), "digest"),
        (statement(subject=[SUBJECT | {"digest": {"sha256": "A" * 64}}]), "digest"),
    ],
)
def test_refused(payload: bytes, names: str) -> None:
    with pytest.raises(Malformed, match=names) as caught:
        read(Note, opened(payload), where="note.dsse.json")
    assert caught.value.where == "note.dsse.json"
