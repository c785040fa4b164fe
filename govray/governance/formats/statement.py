"""In-toto Statements: a document about named artifacts, as the payload of an envelope.

Source: in-toto Attestation Framework, Statement v1,
https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md. Stricter
than the standard asks: canonical JSON, closed fields, a SHA-256 digest for every
subject, unique subject names.

Invariants:
    * A document's digest is the SHA-256 of the statement's bytes, the envelope's
      payload, so a further signature does not change it.
    * `read` gives back a document only under its own predicate type, so one kind
      of document never passes for another.

`read` does not verify signatures. Callers verify the envelope first
(`trust.TrustState.verify` does both, in that order).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import Field, field_validator

from govray.errors import Malformed
from govray.governance.formats import canonical_json
from govray.governance.formats.bounds import Hex256, ShortText
from govray.governance.formats.document import Document, check_no_null
from govray.governance.formats.dsse import IN_TOTO, Envelope, sign_payload
from govray.governance.formats.keys import Signer

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"

D = TypeVar("D", bound=Document)


class Subject(Document):
    """An artifact: its name, and ``{"sha256": <64 lowercase hex>}``."""

    name: ShortText
    digest: dict[Literal["sha256"], Hex256]

    @field_validator("digest")
    @classmethod
    def _one_digest(cls, value: dict[str, str]) -> dict[str, str]:
        if len(value) != 1:
            raise ValueError("should hold exactly one digest, sha256")
        return value

    @classmethod
    def of(cls, name: str, digest: str) -> Self:
        """Return the subject whose digest is given as ``sha256:<hex>``."""
        return cls(name=name, digest={"sha256": digest.removeprefix("sha256:")})

    @property
    def sha256(self) -> str:
        """The digest as ``sha256:<hex>``."""
        return f"sha256:{self.digest['sha256']}"


class _Header(Document):
    """A statement without its predicate."""

    type_: Annotated[Literal["https://in-toto.io/Statement/v1"], Field(alias="_type")]
    predicate_type: Annotated[str, Field(min_length=1, max_length=256)]
    subject: Annotated[tuple[Subject, ...], Field(min_length=1)]

    @field_validator("subject")
    @classmethod
    def _unique_names(cls, value: tuple[Subject, ...]) -> tuple[Subject, ...]:
        if len({subject.name for subject in value}) < len(value):
            raise ValueError("names should be unique")
        return value


@dataclass(frozen=True)
class Sealed(Generic[D]):
    """A document as it stands in an envelope.

    Attributes:
        digest: ``sha256:<hex>`` of ``payload``.
        payload: The statement's bytes, which the signatures cover.
    """

    document: D
    digest: str
    subjects: tuple[Subject, ...]
    payload: bytes


def self_subject(name: str, document: Document) -> Subject:
    """Return the subject of a document that is about nothing but itself.

    A statement needs a subject; a policy or a trust root describes no file. Its
    subject is its own canonical predicate.
    """
    return Subject.of(name, canonical_json.sha256(canonical_json.encode(document.to_json())))


class Signed(Document):
    """A document that is signed alone, about itself unless a subclass says otherwise."""

    NAMED_BY: ClassVar[str] = "name"
    """The field that its subject is called by."""

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """What its statement is about."""
        return (self_subject(getattr(self, self.NAMED_BY), self),)

    def seal(self, signers: Sequence[Signer]) -> bytes:
        """Its signed envelope."""
        return seal(self, self.subjects, signers)


def seal(document: Document, subjects: Sequence[Subject], signers: Sequence[Signer]) -> bytes:
    """Return the signed envelope of ``document`` about ``subjects``."""
    return sign_payload(statement_bytes(document, subjects), signers)


def statement_bytes(document: Document, subjects: Sequence[Subject]) -> bytes:
    """The statement of ``document`` about ``subjects``: what signatures are over."""
    predicate = document.to_json()
    header = {
        "_type": STATEMENT_TYPE,
        "predicateType": document.PREDICATE_TYPE,
        "subject": [subject.to_json() for subject in subjects],
    }
    _Header.from_json(header, where=type(document).__name__)
    return canonical_json.encode(header | {"predicate": predicate})


def check_payload_type(envelope: Envelope, *, where: str) -> None:
    """Return if the envelope says that it holds a statement."""
    if envelope.payload_type != IN_TOTO:
        raise Malformed(
            f"the payload type is {envelope.payload_type!r}, not {IN_TOTO!r}", where=where
        )


_TYPE = b',"predicateType":"'


def claimed_type(envelope: Envelope) -> str | None:
    """The predicate type that a canonical statement names, found without parsing it.

    Nothing rests on it: `read` parses the statement and refuses another type than the asked one.
    Its last place counts, behind the predicate; inside a string the quotes would be escaped.
    """
    start = envelope.payload.rfind(_TYPE) + len(_TYPE)
    stop = envelope.payload.find(b'"', start, start + 257)
    if start < len(_TYPE) or stop < 0:
        return None
    return envelope.payload[start:stop].decode("utf-8", "replace")


def read(kind: type[D], envelope: Envelope, *, where: str | None = None) -> Sealed[D]:
    """Return the document of type ``kind`` that ``envelope`` holds.
    ``envelope``: parsed; its signatures are not looked at here."""
    where = where or kind.__name__
    check_payload_type(envelope, where=where)
    value = canonical_json.parse_canonical(envelope.payload, where=where)
    if not isinstance(value, dict) or "predicate" not in value:
        raise Malformed("the payload is no in-toto Statement with a predicate", where=where)
    predicate = value.pop("predicate")
    header = _Header.from_json(value, where=where)
    if header.predicate_type != kind.PREDICATE_TYPE:
        raise Malformed(
            f"the predicate type is {header.predicate_type!r}, not {kind.PREDICATE_TYPE!r}",
            where=where,
            do=f"Give an envelope that holds a {kind.__name__}",
        )
    check_no_null(predicate, where=where)
    text = _predicate_text(envelope.payload, value)
    del predicate  # before the document comes: large ones need the room
    document = kind.from_text(text, where=where)
    return Sealed(
        document, canonical_json.sha256(envelope.payload), header.subject, envelope.payload
    )


def _predicate_text(payload: bytes, header: dict[str, canonical_json.JSON]) -> bytes:
    """The predicate's bytes in a canonical statement, where it stands behind ``_type``."""
    start, rest = dict(header), dict(header)
    del start["predicateType"], start["subject"], rest["_type"]
    before = len(canonical_json.encode(start)) + len(b'"predicate":')
    return payload[before : len(payload) - len(canonical_json.encode(rest))]
