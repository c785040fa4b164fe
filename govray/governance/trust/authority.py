"""The documents of trust: who is an authority for what, in a root and in delegations.

A root lists authorities. An authority has a role, keys, a threshold and an expiry; one for
credentials also has scopes. A delegation is an authority by the word of another one. Each is
checked by itself here: distinct keys, a threshold that can be met, scopes where they belong.
`govray.governance.trust.trust_state` checks who signed them, and whether a delegation narrows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import Field, StringConstraints, field_validator, model_validator

from govray.governance.formats.bounds import Positive
from govray.governance.formats.certificate import CertificateField
from govray.governance.formats.document import Document, Name, Timestamp
from govray.governance.formats.keys import PublicKey
from govray.governance.formats.statement import Signed, Subject, self_subject
from govray.governance.trust.beacon import Beacon
from govray.governance.trust.key_field import Key
from govray.governance.trust.license import LicenseCategory
from govray.governance.trust.witness_policy import WitnessPolicy

Role: TypeAlias = Literal["credential", "policy", "operator", "witness"]
"""What its keys sign. ``credential``: credentials. ``policy``: depth policies, promotion gates.
``operator``: manifests, ledgers and attestations of training. ``witness``: that a replay of
another's run gave the same files."""

Sensitivity: TypeAlias = Literal["public", "internal", "confidential", "restricted"]

SENSITIVITIES: tuple[Sensitivity, ...] = get_args(Sensitivity)
"""From the least to the most sensitive."""

MAX_KEYS = 32
MAX_AGE_HOURS = 87_600
"""Ten years."""


_CorpusPattern = Annotated[
    str,
    StringConstraints(
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,127}|[A-Za-z0-9][A-Za-z0-9._-]{0,126}\*|\*)$"
    ),
]


_JurisdictionPattern = Annotated[str, StringConstraints(pattern=r"^([A-Z]{2}|\*)$")]


class Scope(Document):
    """What a credential authority may vouch for: the product of four restrictions.

    Attributes:
        corpus: A corpus name, or a prefix followed by ``*``. Nothing richer, so
            that "is part of" is decided by comparing texts.
        license_categories: Categories that credentials may state.
        jurisdictions: ISO 3166-1 alpha-2 codes, or ``*`` for any.
        max_sensitivity: The most sensitive that credentials may state.
    """

    corpus: _CorpusPattern
    license_categories: Annotated[tuple[LicenseCategory, ...], Field(min_length=1)]
    jurisdictions: Annotated[tuple[_JurisdictionPattern, ...], Field(min_length=1)]
    max_sensitivity: Sensitivity

    def covers(
        self,
        *,
        corpus: str,
        license_category: LicenseCategory,
        jurisdiction: str,
        sensitivity: Sensitivity,
    ) -> bool:
        """Whether a credential that states this lies inside the scope."""
        return (
            _pattern_within(corpus, self.corpus)
            and license_category in self.license_categories
            and ("*" in self.jurisdictions or jurisdiction in self.jurisdictions)
            and _rank(sensitivity) <= _rank(self.max_sensitivity)
        )

    def within(self, other: Scope) -> bool:
        """Whether everything that this scope covers is covered by ``other`` alone."""
        return (
            _pattern_within(self.corpus, other.corpus)
            and set(self.license_categories) <= set(other.license_categories)
            and ("*" in other.jurisdictions or set(self.jurisdictions) <= set(other.jurisdictions))
            and _rank(self.max_sensitivity) <= _rank(other.max_sensitivity)
        )


class Authority(Document):
    """Keys that may sign documents of one role.

    Attributes:
        name: Unique in one trust state.
        role: What the authority may sign.
        keys: Distinct public keys.
        threshold: How many of them have to sign, in ``[1, len(keys)]``.
        expires: The first instant at which the authority is no longer one.
        scope: For the role ``credential``: what it may vouch for, at least one.
        minimum_policy_versions: For the role ``policy``: policy name to the lowest
            version that is still accepted.
        minimum_revocations: The lowest sequence of the authority's own revocation list that
            a verifier may rely on. It needs the list then.
        maximum_revocation_age_hours: How long after its issue that list may be relied on, in
            hours. A verifier needs the list then.
    """

    name: Name
    role: Role
    keys: Annotated[tuple[Key, ...], Field(min_length=1, max_length=MAX_KEYS)]
    threshold: Positive
    expires: Timestamp
    scope: tuple[Scope, ...] | None = None
    minimum_policy_versions: dict[Name, Positive] | None = None
    minimum_revocations: Positive | None = None
    maximum_revocation_age_hours: Annotated[int, Field(ge=1, le=MAX_AGE_HOURS)] | None = None

    @field_validator("keys")
    @classmethod
    def _distinct_keys(cls, keys: tuple[PublicKey, ...]) -> tuple[PublicKey, ...]:
        return _distinct(keys)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_threshold(self.threshold, self.keys)
        if self.role == "credential" and not self.scope:
            raise ValueError(f"the credential authority '{self.name}' needs at least one scope")
        if self.role != "credential" and self.scope is not None:
            raise ValueError(f"the {self.role} authority '{self.name}' cannot have a scope")
        if self.role != "policy" and self.minimum_policy_versions is not None:
            raise ValueError(f"the {self.role} authority '{self.name}' has no policy versions")
        return self

    def covers(
        self,
        *,
        corpus: str,
        license_category: LicenseCategory,
        jurisdiction: str,
        sensitivity: Sensitivity,
    ) -> bool:
        """Whether one of the scopes covers a credential that states this."""
        return any(
            scope.covers(
                corpus=corpus,
                license_category=license_category,
                jurisdiction=jurisdiction,
                sensitivity=sensitivity,
            )
            for scope in self.scope or ()
        )

    def may_name(self, corpus: str) -> bool:
        """Whether one of the scopes is about this corpus, whatever else it restricts."""
        return any(_pattern_within(corpus, scope.corpus) for scope in self.scope or ())


class TimestampAuthority(Document):
    """A timestamp authority (TSA) of RFC 3161.

    Attributes:
        name: Unique in the trust root.
        certificates: Of its certification authorities, or its own: a token's chain ends in one of
            them. Each has to be valid at the time that the token states.
    """

    name: Name
    certificates: Annotated[tuple[CertificateField, ...], Field(min_length=1, max_length=8)]


class TrustRoot(Signed):
    """The document that everything else is checked against.

    Attributes:
        name: Of the organisation or deployment; a new root keeps it.
        version: From 1; only increases.
        expires: The first instant at which the root is no longer accepted.
        keys: The root's own keys, which sign it.
        threshold: How many of them have to sign.
        authorities: Who may sign what.
        timestamp_authorities: Whose timestamps count; none if absent.
        witness_policy: Which witnesses' cosignatures of a ledger's head count, and how many make a
            model `witnessed`; none do if absent.
        beacon: Whose pulses the salts of reserves follow from; preparation draws them if absent.
    """

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/trust-root/v1"

    name: Name
    version: Positive
    expires: Timestamp
    keys: Annotated[tuple[Key, ...], Field(min_length=1, max_length=MAX_KEYS)]
    threshold: Positive
    authorities: tuple[Authority, ...]
    timestamp_authorities: (
        Annotated[tuple[TimestampAuthority, ...], Field(min_length=1, max_length=MAX_KEYS)] | None
    ) = None
    witness_policy: WitnessPolicy | None = None
    beacon: Beacon | None = None

    @field_validator("keys")
    @classmethod
    def _distinct_keys(cls, keys: tuple[PublicKey, ...]) -> tuple[PublicKey, ...]:
        return _distinct(keys)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_threshold(self.threshold, self.keys)
        names = [authority.name for authority in self.authorities]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two authorities are named '{name}'")
        stamping = [each.name for each in self.timestamp_authorities or ()]
        if len(set(stamping)) < len(stamping):
            raise ValueError("two timestamp authorities have one name")
        own = {each.key for each in self.witness_policy.witnesses} if self.witness_policy else set()
        for authority in self.authorities:
            if own & set(authority.keys):
                raise ValueError(
                    f"a key of the authority '{authority.name}' is a ledger witness's too"
                )
            if self.beacon and self.beacon.key in authority.keys:
                raise ValueError(f"a key of the authority '{authority.name}' is the beacon's too")
        return self


class Delegation(Signed):
    """An authority by the word of another one, signed by the delegator's threshold."""

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/delegation/v1"

    delegator: Name
    authority: Authority

    @property
    def subjects(self) -> tuple[Subject, ...]:
        return (self_subject(self.authority.name, self),)


def _check_threshold(threshold: int, keys: Sequence[PublicKey]) -> None:
    if threshold > len(keys):
        raise ValueError(f"the threshold {threshold} exceeds the number of keys, {len(keys)}")


def _distinct(keys: tuple[PublicKey, ...]) -> tuple[PublicKey, ...]:
    if len({key.spki for key in keys}) < len(keys):
        raise ValueError("the same key is listed twice")
    return keys


def _pattern_within(inner: str, outer: str) -> bool:
    """Whether all names of one pattern (or one name) belong to another pattern."""
    if outer.endswith("*"):
        return inner.removesuffix("*").startswith(outer.removesuffix("*"))
    return inner == outer


def _rank(sensitivity: Sensitivity) -> int:
    return SENSITIVITIES.index(sensitivity)
