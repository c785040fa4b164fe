"""Revocation lists: what an authority takes back before it expires.

An authority that issues credentials or signs policies may also sign a list of those that no longer
hold, each with the time from which that counts. Whoever has the list and the trust root can check
it offline, and no private key is needed to.

Invariants:
    * A list belongs to the authority that it names as issuer, which signed it with its threshold.
    * An authority revokes only what it could issue: a credential within its scope, or, with the
      role ``policy``, a policy. An entry beyond that is an error, never passed over.
    * Its sequence number only increases, and entries stay: a revocation is not taken back, a new
      credential is signed instead. The trust root may state the lowest sequence that is accepted.

Not done here: saying what a revocation means for a run (``verify.py`` for one that ended, ``train``
for one that goes on), fetching lists, and revoking keys: a new trust root does that. A list says
nothing about what was revoked after it was issued.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from govray.errors import Malformed, Untrusted
from govray.governance.authority import Authority, Role
from govray.governance.credential import Credential
from govray.governance.document import Digest, Document, Name, Timestamp, parse_time
from govray.governance.keys import Signer
from govray.governance.policy import Policy
from govray.governance.statement import seal, self_subject
from govray.governance.trust import TrustState, Verified

SCHEMA = "govray.dev/revocations/v1"
MAX_LISTS = 64
MAX_BYTES = 16 << 20

_ROLES: tuple[Role, ...] = ("credential", "policy")

_Reason = Annotated[str, Field(min_length=1, max_length=1024)]


class Revocation(Document):
    """One thing that no longer holds; exactly one of the three names it.

    Attributes:
        credential: Digest of a credential.
        corpus: Every credential of this corpus, whenever it was issued.
        policy: Digest of a policy.
        since: The first instant from which it counts; may lie before the list's issue.
        reason: For people.
    """

    credential: Digest | None = None
    corpus: Name | None = None
    policy: Digest | None = None
    since: Timestamp
    reason: _Reason

    @model_validator(mode="after")
    def _names_one_thing(self) -> Self:
        if [self.credential, self.corpus, self.policy].count(None) != 2:
            raise ValueError("an entry names one of credential, corpus and policy")
        return self

    @property
    def role(self) -> Role:
        """The role of the authorities that may state this."""
        return "credential" if self.policy is None else "policy"


class RevocationList(Document):
    """Everything that one authority has revoked so far.

    Attributes:
        issuer: Name of the authority that signs.
        sequence: From 1; only increases.
        issued: When, by the issuer's clock.
        entries: In the order in which they were made; none is fine, it says so.
    """

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/revocations/v1"

    issuer: Name
    sequence: Annotated[int, Field(ge=1, le=(1 << 53) - 1)]
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

    Attributes:
        since: The first instant from which it counts, aware.
        reason: For people.
        list: Digest of the list.
        issuer: Of the list.
        sequence: Of the list.
    """

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
    """

    lists: tuple[Verified[RevocationList], ...]

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
            trust: The trust state, already verified.
            envelopes: One list each.
            at: The reference time, aware.
            previous: Lists that were accepted before; these follow them.

        Raises:
            Malformed: One is no revocation list.
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
        return cls(tuple(found[issuer] for issuer in sorted(found)))

    @property
    def digests(self) -> frozenset[str]:
        """Of the lists."""
        return frozenset(each.digest for each in self.lists)

    def of_credential(self, credential: Verified[Credential]) -> Revoked | None:
        """The earliest revocation of a credential, or None.

        Raises:
            Untrusted: A list revokes it whose issuer could not have issued it.
        """
        document = credential.document
        found = []
        for each in self.lists:
            for entry in each.document.entries:
                if entry.credential != credential.digest and entry.corpus != document.corpus:
                    continue
                if not _issuer(each).covers(
                    corpus=document.corpus,
                    license_category=document.license_category,
                    jurisdiction=document.jurisdiction,
                    sensitivity=document.sensitivity,
                ):
                    raise Untrusted(
                        f"revokes the credential of corpus {document.corpus!r}, which is outside "
                        "the scope of its issuer",
                        where=str(each.document),
                        do="Leave the list out, or have an authority in charge revoke it",
                    )
                found.append(_revoked(each, entry))
        return min(found, key=lambda revoked: revoked.since, default=None)

    def of_policy(self, policy: Verified[Policy]) -> Revoked | None:
        """The earliest revocation of a policy, or None."""
        found = [
            _revoked(each, entry)
            for each in self.lists
            for entry in each.document.entries
            if entry.policy == policy.digest
        ]
        return min(found, key=lambda revoked: revoked.since, default=None)


def seal_revocations(document: RevocationList, signers: Sequence[Signer]) -> bytes:
    """Return the signed envelope of a list.

    Raises:
        UsageError: No signer, or the same key twice.
    """
    return seal(document, [self_subject(document.issuer, document)], signers)


def verify_revocations(trust: TrustState, data: bytes, *, at: datetime) -> Verified[RevocationList]:
    """Return the revocation list in the envelope ``data`` if the trust root carries it.

    1. An authority for credentials or for policies signed it, with its threshold of keys.
    2. The subject is the list itself.
    3. The issuer that the list names is among the authorities that signed.
    4. Each entry is of the issuer's role; a corpus is in its scope.
    5. It was issued at ``at`` or before.
    6. Its sequence is not below the least that the trust root accepts.

    Args:
        trust: The trust state, already verified.
        data: An envelope.
        at: The reference time, aware.

    Raises:
        Malformed: ``data`` is no revocation list.
        Untrusted: The first of the numbered conditions that does not hold.
    """
    verified = _signed(trust, data, at)  # 1
    document = verified.document
    where = f"revocation {document}"
    if verified.subjects != (self_subject(document.issuer, document),):  # 2
        raise Untrusted(
            "the statement's subject is not the list",
            where=where,
            do="Ask the issuer to sign it again",
        )
    signers = {authority.name: authority for authority in verified.authorities}
    if document.issuer not in signers:  # 3
        raise Untrusted(
            f"names {document.issuer!r} as issuer, but {' and '.join(signers)} signed it",
            where=where,
            do="The issuer has to sign its own list",
        )
    issuer = signers[document.issuer]
    for entry in document.entries:  # 4
        if entry.role != issuer.role:
            raise Untrusted(
                f"revokes a {entry.role}, but its issuer has the role {issuer.role}",
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
    least = trust.minimum_revocations(document.issuer)
    if document.sequence < least:  # 6
        raise Untrusted(
            f"older than list {least}, the least that the trust root accepts",
            where=where,
            do="Get the current list from its issuer",
        )
    return verified


def _signed(trust: TrustState, data: bytes, at: datetime) -> Verified[RevocationList]:
    """The list with all authorities of either role that signed it."""
    met: list[Verified[RevocationList]] = []
    refusals: list[Untrusted] = []
    for role in _ROLES:
        try:
            met.append(trust.verify(RevocationList, data, role=role, at=at, where="revocations"))
        except Untrusted as error:
            refusals.append(error)
    if not met:
        raise refusals[0]
    first = met[0]
    authorities = tuple(authority for each in met for authority in each.authorities)
    return Verified(first.document, first.digest, first.subjects, authorities, first.keyids)


def _issuer(each: Verified[RevocationList]) -> Authority:
    return next(a for a in each.authorities if a.name == each.document.issuer)


def _revoked(each: Verified[RevocationList], entry: Revocation) -> Revoked:
    return Revoked(
        since=parse_time(entry.since),
        reason=entry.reason,
        list=each.digest,
        issuer=each.document.issuer,
        sequence=each.document.sequence,
    )


def _check_follows(new: Verified[RevocationList] | None, old: Verified[RevocationList]) -> None:
    was = old.document
    where = f"revocations of {was.issuer}"
    if new is None:
        raise Untrusted(
            f"there is none any more, after {was}",
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
