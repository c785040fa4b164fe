"""Revocation lists: what an authority takes back before it expires.

An authority may sign a list of what no longer holds: credentials, policies, attestations, and
delegations of its own. Each has the time from which that counts. A holder of the list and the trust
root can check it offline, and no private key is needed to.

Invariants:
    * A list belongs to the authority that it names as issuer, which signed it with its threshold.
    * An authority revokes only what it could issue: a credential within its scope, or a delegation
      of its own or of its delegates. With the role ``policy`` it revokes a policy. With the role
      ``operator`` it revokes an attestation of its own, or of any operator if the trust root itself
      names it. An entry beyond that is an error, never passed over.
    * Its sequence number only increases, and entries stay: a revocation is not taken back, a new
      document is signed instead.
    * Freshness is the trust root's rule, not the caller's: `check_fresh`.

``verifier.py`` says what a revocation means for a run that ended, and ``train`` for one that goes
on. Lists are not fetched here. A new trust root revokes keys. A list says nothing about what was
revoked after it was issued.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from govray.errors import CouldNotCheck, Malformed, Untrusted
from govray.governance.formats.bounds import Positive, ShortText
from govray.governance.formats.document import (
    Digest,
    Document,
    Name,
    Timestamp,
    format_time,
    parse_time,
)
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import Sealed, Signed, read
from govray.governance.trust.authority import Authority, Role
from govray.governance.trust.trust_state import TrustState, Verified, check_subjects

SCHEMA = "govray.dev/revocations/v1"
MAX_LISTS = 64
MAX_BYTES = 16 << 20

_ROLES: tuple[Role, ...] = ("credential", "policy", "operator", "witness")
_KINDS: Mapping[str, Role] = {
    "credential": "credential",
    "corpus": "credential",
    "policy": "policy",
    "attestation": "operator",
}
"""What an entry names, and the role of those who issue it. A delegation is of any role."""


class Revocation(Document):
    """One thing that no longer holds; exactly one of the five names it.

    Attributes:
        credential: Digest of a credential.
        corpus: Every credential of this corpus, whenever it was issued.
        policy: Digest of a policy.
        attestation: Digest of an attestation: its files no longer verify by it.
        delegation: Digest of a delegation: what its authority, and those that it delegates to,
            sign from then on no longer counts.
        since: The first instant from which it counts; may lie before the list's issue.
        reason: For people.
    """

    credential: Digest | None = None
    corpus: Name | None = None
    policy: Digest | None = None
    attestation: Digest | None = None
    delegation: Digest | None = None
    since: Timestamp
    reason: ShortText

    @model_validator(mode="after")
    def _names_one_thing(self) -> Self:
        named = [name for name in (*_KINDS, "delegation") if getattr(self, name) is not None]
        if len(named) != 1:
            raise ValueError(
                "an entry names one of credential, corpus, policy, attestation and delegation"
            )
        return self

    @property
    def role(self) -> Role | None:
        """The role of the authorities that may state this; None: any role's."""
        return next((role for name, role in _KINDS.items() if getattr(self, name)), None)


class RevocationList(Signed):
    """Everything that one authority has revoked so far.

    Attributes:
        issuer: Name of the authority that signs.
        sequence: From 1; only increases.
        issued: When, by the issuer's clock.
        entries: In the order in which they were made; none is fine, it says so.
    """

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/revocations/v1"
    NAMED_BY: ClassVar[str] = "issuer"

    issuer: Name
    sequence: Positive
    issued: Timestamp
    entries: Annotated[tuple[Revocation, ...], Field(max_length=100_000)]

    @property
    def name(self) -> str:
        """The issuer: a list takes the place of its issuer's earlier ones."""
        return self.issuer

    @property
    def version(self) -> int:
        """The sequence number, under the name that other documents have for it."""
        return self.sequence

    def __str__(self) -> str:
        return f"list {self.sequence} of {self.issuer}"


@dataclass(frozen=True)
class Revoked:
    """That something no longer holds, and who says so.
    ``since``: the first instant from which it counts, aware."""

    since: datetime
    reason: str
    list: str
    issuer: str
    sequence: int


@dataclass(frozen=True)
class Revocations:
    """Verified lists, at most one of each issuer. Made by `load`.

    Attributes:
        lists: In the order of the issuers' names.
        delegates: Name of an authority by delegation → the revocation of that, or of one above.
        delegators: Name of an authority by delegation → its delegator's.
        passed_over: Lists that were at hand and say nothing here, each with why.
    """

    lists: tuple[Verified[RevocationList], ...]
    delegates: Mapping[str, Revoked] = field(default_factory=dict)
    delegators: Mapping[str, str] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()

    @classmethod
    def load(
        cls,
        trust: TrustState,
        envelopes: Iterable[bytes],
        *,
        at: datetime,
        previous: Revocations | None = None,
    ) -> Self:
        """Return the lists in ``envelopes`` if the trust root carries them all.

        Args:
            previous: Lists that were accepted before; these follow them.

        Raises:
            Untrusted: One is not its issuer's, reaches too far, or goes back; or two are of
                one issuer.
        """
        found: dict[str, Verified[RevocationList]] = {}
        for number, data in enumerate(envelopes, start=1):
            if number > MAX_LISTS:
                raise Malformed(f"more than {MAX_LISTS} lists", where="revocations")
            each = verify_revocations(trust, data, at=at)
            if each.document.issuer in found:
                raise Untrusted(
                    f"two revocation lists of {each.document.issuer!r}",
                    where="revocations",
                    do="Give the newer one alone: it holds the older one's entries too",
                )
            found[each.document.issuer] = each
        for old in previous.lists if previous else ():
            _check_follows(found.get(old.document.issuer), old)
        return cls._of(trust, found)

    @classmethod
    def _of(cls, trust: TrustState, found: Mapping[str, Verified[RevocationList]]) -> Self:
        lists = tuple(found[issuer] for issuer in sorted(found))
        above = {
            each.document.authority.name: each.document.delegator for each in trust.delegations
        }
        return cls(lists, _revoked_delegates(trust, lists, above), above)

    def following(self, trust: TrustState, earlier: Revocations) -> Self:
        """These lists, and those of ``earlier`` whose issuers have none here.
        Raises ``Untrusted``: one goes back behind the earlier one of its issuer."""
        found = {each.document.issuer: each for each in self.lists}
        for old in earlier.lists:
            if (new := found.get(old.document.issuer)) is not None:
                _check_follows(new, old)
        return self._of(trust, {each.document.issuer: each for each in earlier.lists} | found)

    def check_follows(self, old: Sealed[RevocationList]) -> bool:
        """Whether there is a list of the issuer of ``old`` here, which then has to follow it."""
        issuer = old.document.issuer
        new = next((each for each in self.lists if each.document.issuer == issuer), None)
        if new is not None:
            _check_follows(new, old)
        return new is not None

    @property
    def digests(self) -> frozenset[str]:
        """Of the lists."""
        return frozenset(each.digest for each in self.lists)

    def of_attestation(self, digest: str, signers: Iterable[str]) -> Revoked | None:
        """The earliest revocation of an attestation, or None.

        Args:
            digest: Of its statement.

        Raises:
            Untrusted: A list revokes it whose issuer could not have issued it.
        """
        signed = tuple(signers)
        found = []
        for each, entry in self._attestations.get(digest, ()):
            issuer = each.document.issuer
            if issuer in self.delegators and not any(self._above(issuer, s) for s in signed):
                raise Untrusted(
                    f"revokes an attestation of {' and '.join(signed)}, but its issuer is an "
                    "operator by delegation, and theirs is not from it",
                    where=str(each.document),
                    do="Leave the list out, or have an operator that the root names revoke it",
                )
            found.append(revoked_by(each, entry))
        return earliest(found)

    @cached_property
    def _attestations(self) -> Mapping[str, list[tuple[Verified[RevocationList], Revocation]]]:
        """Digest of an attestation → the entries that revoke it. One pass, made once."""
        found: dict[str, list[tuple[Verified[RevocationList], Revocation]]] = {}
        for each in self.lists:
            for entry in each.document.entries:
                if entry.attestation is not None:
                    found.setdefault(entry.attestation, []).append((each, entry))
        return found

    @property
    def attestations(self) -> Iterable[str]:
        """Digests of the attestations that the lists revoke, each once."""
        return self._attestations.keys()

    def _above(self, issuer: str, name: str) -> bool:
        """Whether ``name`` is ``issuer``, or has its rights from it."""
        return issuer == name or issuer in _lineage(self.delegators, name)


def following_list(
    earlier: RevocationList | None, issuer: str, entry: Revocation, *, at: datetime
) -> RevocationList:
    """The next list of an issuer, with one entry more."""
    return RevocationList(
        issuer=issuer,
        sequence=earlier.sequence + 1 if earlier else 1,
        issued=format_time(at),
        entries=(*(earlier.entries if earlier else ()), entry),
    )


def verify_revocations(trust: TrustState, data: bytes, *, at: datetime) -> Verified[RevocationList]:
    """Return the revocation list in the envelope ``data`` if the trust root carries it.

    1. An authority for credentials or for policies signed it, with its threshold of keys.
    2. The subject is the list itself.
    3. The issuer that the list names is among the authorities that signed.
    4. Each entry is of the issuer's role; a corpus is in its scope.
    5. It was issued at ``at`` or before.

    Whether it is fresh enough is `check_fresh`'s.

    Raises:
        Untrusted: The first of the numbered conditions that does not hold.
    """
    verified = _signed(trust, data, at)  # 1
    document = verified.document
    where = f"revocation {document}"
    check_subjects(verified, where=where)  # 2
    signers = {authority.name: authority for authority in verified.authorities}
    if document.issuer not in signers:  # 3
        raise Untrusted(
            f"names {document.issuer!r} as issuer, but {' and '.join(signers)} signed it",
            where=where,
            do="The issuer has to sign its own list",
        )
    issuer = signers[document.issuer]
    for entry in document.entries:  # 4
        if entry.role not in (issuer.role, None):
            raise Untrusted(
                f"revokes a document of the role {entry.role}, but its issuer has the role "
                f"{issuer.role}",
                where=where,
                do="An authority revokes only what it could issue",
            )
        if entry.corpus is not None and not issuer.may_name(entry.corpus):
            raise Untrusted(
                f"revokes corpus {entry.corpus!r}, which is outside the scope of its issuer",
                where=where,
                do="An authority revokes only what it could issue",
            )
    if parse_time(document.issued) > at:  # 5
        raise Untrusted(
            f"issued at {document.issued}, after the reference time",
            where=where,
            do="Check the reference time",
        )
    return verified


def stale(trust: TrustState, lists: Revocations | None, *, at: datetime) -> tuple[str, ...]:
    """What the trust root's rules of freshness lack, a sentence for each issuer; maybe none."""
    given = {each.document.issuer: each.document for each in lists.lists} if lists else {}
    gone = lists.delegates if lists else {}
    found = []
    for authority in trust.authorities:
        least, hours = authority.minimum_revocations, authority.maximum_revocation_age_hours
        if least is None and hours is None:
            continue
        if authority.name in gone and gone[authority.name].since <= at:
            continue  # an authority no longer, so it has no list to keep up
        document = given.get(authority.name)
        if document is None:
            asked = [] if least is None else [f"at least list {least}"]
            asked += [] if hours is None else [f"a list of the last {hours} hours"]
            found.append(
                f"the trust root asks for {' and '.join(asked)} of {authority.name}, none was given"
            )
        elif least is not None and document.sequence < least:
            found.append(f"{document} is older than list {least}, which the trust root asks for")
        elif hours is not None and parse_time(document.issued) + timedelta(hours=hours) <= at:
            found.append(
                f"{document} is of {document.issued}, older than the {hours} hours that the trust "
                "root accepts"
            )
    return tuple(found)


def check_fresh(trust: TrustState, lists: Revocations | None, *, at: datetime) -> None:
    """Require the lists that the trust root asks for. Without a rule in it, nothing is required.
    Raises ``CouldNotCheck``: one is missing, has too low a sequence, or was issued too long ago."""
    if found := stale(trust, lists, at=at):
        over = [f"passed over: {each}" for each in lists.passed_over] if lists else []
        raise CouldNotCheck(
            "; ".join([*found, *over]),
            where="revocations",
            do="Get the current list from its issuer, and give it with --revocations",
        )


def _lineage(delegators: Mapping[str, str], name: str) -> Iterator[str]:
    """Who ``name`` has its rights from, the nearest first."""
    while (name := delegators.get(name, "")) != "":
        yield name


def _revoked_delegates(
    trust: TrustState, lists: Sequence[Verified[RevocationList]], above: Mapping[str, str]
) -> dict[str, Revoked]:
    """Name of an authority by delegation → its revocation, or that of one above it."""
    found: dict[str, Revoked] = {}
    for sealed in trust.delegations:  # delegators before delegates
        name = sealed.document.authority.name
        revoked = [found[above[name]]] if above[name] in found else []
        for each in lists:
            for entry in each.document.entries:
                if entry.delegation != sealed.digest:
                    continue
                if each.document.issuer not in _lineage(above, name):
                    raise Untrusted(
                        f"revokes the delegation of {name!r}, which is not from its issuer",
                        where=str(each.document),
                        do="Leave the list out, or have the delegator revoke it",
                    )
                revoked.append(revoked_by(each, entry))
        if (first := earliest(revoked)) is not None:
            found[name] = first
    return found


def earliest(found: Iterable[Revoked]) -> Revoked | None:
    """The first of them to count, or None."""
    return min(found, key=lambda revoked: revoked.since, default=None)


def _signed(trust: TrustState, data: bytes, at: datetime) -> Verified[RevocationList]:
    """The list with all authorities of either role that signed it."""
    envelope = Envelope.parse(data, where="revocations")  # once, with the keys that were tried
    met: list[Verified[RevocationList]] = []
    refusals: list[Untrusted] = []
    for role in _ROLES:
        try:
            met.append(
                trust.verify(RevocationList, envelope, role=role, at=at, where="revocations")
            )
        except Untrusted as error:
            refusals.append(error)
    if not met:
        issuer = read(RevocationList, envelope, where="revocations").document.issuer
        role = next((a.role for a in trust.authorities if a.name == issuer), _ROLES[0])
        raise refusals[_ROLES.index(role)]
    first = met[0]
    authorities = tuple(authority for each in met for authority in each.authorities)
    return Verified(first.document, first.digest, first.subjects, authorities, first.keyids)


def issuer_of(each: Verified[RevocationList]) -> Authority:
    return next(a for a in each.authorities if a.name == each.document.issuer)


def revoked_by(each: Verified[RevocationList], entry: Revocation) -> Revoked:
    return Revoked(
        since=parse_time(entry.since),
        reason=entry.reason,
        list=each.digest,
        issuer=each.document.issuer,
        sequence=each.document.sequence,
    )


def _check_follows(
    new: Verified[RevocationList] | None, old: Verified[RevocationList] | Sealed[RevocationList]
) -> None:
    was = old.document
    where = f"revocations of {was.issuer}"
    if new is None:
        raise Untrusted(
            f"the list that followed {was} is gone",
            where=where,
            do="Put the newest list back",
        )
    now = new.document
    if now.sequence < was.sequence:
        raise Untrusted(
            f"{now} comes after {was}: a sequence never goes back",
            where=where,
            do="Put the newest list back",
        )
    if now.sequence == was.sequence and new.digest != old.digest:
        raise Untrusted(
            f"two different lists have the sequence {now.sequence}",
            where=where,
            do="Give a changed list a higher sequence",
        )
    if not set(was.entries) <= set(now.entries):
        raise Untrusted(
            f"{now} lacks an entry of {was}",
            where=where,
            do="A revocation is not taken back: sign a new credential or policy instead",
        )
