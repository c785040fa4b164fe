"""Credentials: signed statements about a corpus, and the class a policy sees of one.

A credential says what a corpus is (licence, jurisdiction, sensitivity, use), for how long, and who
says so. It names its records by a Merkle root over them. How the
corpus came to be is optional (`corpus_description.py`).

Invariants:
    * What can be derived is not believed: the licence category and the use must be
      ones that the SPDX expression allows. Only ``LicenseRef-*`` terms leave the
      issuer a choice.
    * The licence expression is in its one normal form, so that a policy's glob sees
      one spelling.
    * A verified credential was issued by an authority under its own name, within its scope. It has
      exactly one subject: the corpus, by name and Merkle root.

Not done here: comparing the Merkle root with records (``data`` does, at admission),
and deciding whether a licence statement is true. Nothing here can.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from govray.errors import Malformed, Untrusted
from govray.governance.formats import canonical_json
from govray.governance.formats.document import Count, Digest, Document, Name, Timestamp, parse_time
from govray.governance.formats.row_schema import RowSchema
from govray.governance.formats.statement import Signed, Subject
from govray.governance.policy.corpus_description import (
    UNDESCRIBED,
    CorpusDescription,
    Language,
    Modality,
    OptOut,
    PersonalData,
    Source,
)
from govray.governance.policy.pii_scan import PiiScan
from govray.governance.trust.authority import Sensitivity
from govray.governance.trust.jurisdiction import JURISDICTIONS
from govray.governance.trust.license import (
    LICENSE_CATEGORIES,
    USES,
    LicenseCategory,
    Use,
    category_bounds,
    normalise,
    use_bounds,
)
from govray.governance.trust.trust_state import TrustState, Verified, check_subjects


def _check_jurisdiction(code: str) -> str:
    if code not in JURISDICTIONS:
        raise ValueError(f"{code!r} is no ISO 3166-1 alpha-2 code; write ZZ if none is known")
    return code


def _check_license(expression: str) -> str:
    try:
        normal = normalise(expression)
    except Malformed as error:
        raise ValueError(f"{error.what}. {error.do}") from None
    if normal != expression:
        raise ValueError(f"not in normal form; write {normal!r}")
    return expression


Jurisdiction = Annotated[str, AfterValidator(_check_jurisdiction)]
"""An ISO 3166-1 alpha-2 code, or ``ZZ`` where none is known."""

LicenseExpression = Annotated[str, AfterValidator(_check_license)]
"""An SPDX licence expression in normal form (`license.normalise`)."""

Normalisation: TypeAlias = Literal["newlines", "nfc"]
"""A change to the text before it was hashed: line ends to LF, Unicode's form NFC."""


class Period(Document):
    """A span of time, from the first instant up to but not including the last."""

    from_: Annotated[Timestamp, Field(alias="from")]
    until: Timestamp

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.from_ >= self.until:
            raise ValueError(f"from {self.from_} is not before until {self.until}")
        return self

    def contains(self, at: datetime) -> bool:
        """Whether the aware instant ``at`` lies in the period."""
        return parse_time(self.from_) <= at < self.expires

    @property
    def expires(self) -> datetime:
        """The first instant after the period, aware, in UTC."""
        return parse_time(self.until)

    def check(self, at: datetime, *, where: str) -> None:
        """Refuse an instant outside the period.

        Raises:
            Untrusted: ``where`` is not yet valid, or has expired.
        """
        if at >= self.expires:
            raise Untrusted(
                f"expired at {self.until}",
                where=where,
                do="Ask its issuer for a renewed one",
            )
        if not self.contains(at):
            raise Untrusted(
                f"not valid before {self.from_}",
                where=where,
                do="Check the reference time, or wait",
            )


class Records(Document):
    """The records a credential is about.

    Attributes:
        root: Merkle root (RFC 9162) over the records' leaves, in the corpus's order.
        commitment: Which secret the leaves are made with (``record_commitment.py``).
    """

    root: Digest
    count: Count
    commitment: Digest


class CredentialClass(Document):
    """The attributes of a corpus that a policy can see. Hashable.

    Equal classes are routed alike. The corpus name is one of the attributes, so a
    class belongs to one corpus. `DESCRIBED` are of the credential's description, and absent where
    that does not state them.
    """

    corpus: Name
    license: LicenseExpression
    license_category: LicenseCategory
    jurisdiction: Jurisdiction
    sensitivity: Sensitivity
    use: Use
    source: Source | None = None
    modality: Annotated[tuple[Modality, ...], Field(min_length=1)] | None = None
    languages: Annotated[tuple[Language, ...], Field(min_length=1)] | None = None
    opt_out: OptOut | None = None
    personal_data: PersonalData | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return canonical_json.sha256(canonical_json.encode(self.to_json()))

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.texts().items())

    def texts(self) -> dict[str, str]:
        """The attributes that are stated, each as one text."""
        return {
            name: ", ".join(value) if isinstance(value, tuple) else value
            for name, value in self
            if value is not None
        }


DESCRIBED = tuple(
    name for name in CredentialClass.model_fields if name in CorpusDescription.model_fields
)
"""Attributes that are of a credential's description."""


class Credential(Signed):
    """What an issuer states about a corpus.

    Attributes:
        schema_version: Always ``v1``; stated because unsigned credentials travel without
            the statement that carries the predicate type.
        license: SPDX expression in normal form.
        license_category: Must be derivable from ``license``, up to ``LicenseRef-*``.
        use: What the terms allow; may be narrower than ``license`` alone.
        jurisdiction: Whose law the issuer says applies.
        sensitivity: ``public`` < ``internal`` < ``confidential`` < ``restricted``.
        valid: When the statement holds.
        issued: When its records were settled, as its issuer says. Where the trust root names a
            beacon, the pulse that chooses a reserve is later (`trust/beacon.py`).
        issuer: Name of the authority that signs.
        records: Which records.
        normalisation: How its text was changed before it was hashed; absent if it was not.
        rows: What its records are, if not text: conversations, or named tensors.
        pii_scan: What its records were scanned for; absent if they were not.
        description: How it came to be, in the terms that policies and reports read.
    """

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/credential/v1"

    schema_version: Literal["v1"]
    corpus: Name
    license: LicenseExpression
    license_category: LicenseCategory
    use: Use
    jurisdiction: Jurisdiction
    sensitivity: Sensitivity
    valid: Period
    issued: Timestamp | None = None
    issuer: Name
    records: Records
    normalisation: Annotated[tuple[Normalisation, ...], Field(min_length=1)] | None = None
    rows: RowSchema | None = None
    pii_scan: PiiScan | None = None
    description: CorpusDescription | None = None

    @model_validator(mode="after")
    def _states_what_the_license_allows(self) -> Self:
        rank = LICENSE_CATEGORIES.index
        least, most = category_bounds(self.license)
        if not rank(least) <= rank(self.license_category) <= rank(most):
            derived = least if least == most else f"{least} to {most}"
            raise ValueError(
                f"licenseCategory {self.license_category!r} does not follow from license "
                f"{self.license!r}, which gives {derived}"
            )
        widest = use_bounds(self.license).widest
        if USES.index(self.use) < USES.index(widest):
            raise ValueError(
                f"use {self.use!r} is wider than license {self.license!r} allows ({widest})"
            )
        return self

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """The corpus."""
        return (Subject.of(self.corpus, self.records.root),)

    @property
    def described(self) -> CorpusDescription:
        """How it came to be; `UNDESCRIBED` if that is left out."""
        return self.description or UNDESCRIBED

    @property
    def credential_class(self) -> CredentialClass:
        """The attributes that a policy sees."""
        described = {name: getattr(self.described, name) for name in DESCRIBED}
        return CredentialClass(
            corpus=self.corpus,
            license=self.license,
            license_category=self.license_category,
            jurisdiction=self.jurisdiction,
            sensitivity=self.sensitivity,
            use=self.use,
            **described,
        )


def verify_credential(trust: TrustState, data: bytes, *, at: datetime) -> Verified[Credential]:
    """Return the credential in the envelope ``data`` if the trust root carries it.

    1. An authority for credentials signed it, with its threshold of keys.
    2. The subject is the corpus, by name and Merkle root.
    3. The issuer that the credential names is among the authorities that signed.
    4. Corpus, licence category, jurisdiction and sensitivity are within its scope.
    5. The credential is valid at ``at``.

    Raises:
        Untrusted: The first of the numbered conditions that does not hold.
    """
    verified = trust.verify(Credential, data, role="credential", at=at)  # 1
    credential = verified.document
    where = f"credential of corpus {credential.corpus!r}"
    check_subjects(verified, where=where)  # 2
    signers = {authority.name: authority for authority in verified.authorities}
    if credential.issuer not in signers:  # 3
        raise Untrusted(
            f"names {credential.issuer!r} as issuer, but {' and '.join(signers)} signed it",
            where=where,
            do="The issuer has to sign its own credentials",
        )
    if not signers[credential.issuer].covers(  # 4
        corpus=credential.corpus,
        license_category=credential.license_category,
        jurisdiction=credential.jurisdiction,
        sensitivity=credential.sensitivity,
    ):
        raise Untrusted(
            f"outside the scope of its issuer {credential.issuer!r} "
            f"({credential.credential_class})",
            where=where,
            do="Have it issued by an authority whose scope covers it, or widen the delegation",
        )
    credential.valid.check(at, where=where)  # 5
    return verified
