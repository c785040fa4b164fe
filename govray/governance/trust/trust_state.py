"""Who may sign what: a trust root, delegations that only narrow, a reference time.

The root lists authorities. An authority has a role, keys, a threshold and an
expiry; a credential authority also has scopes. An authority may delegate to
another one, which may delegate further. `TrustState` is pure: bytes and a
reference time in, verified values or errors out. It reads no clock and no file.

python-tuf (7.0) was looked at first. Its expiry check takes a reference time, but the rest does not
fit. It signs its own metadata format over its own canonical JSON instead of DSSE over stored bytes.
It has to accept unknown fields. It delegates target paths, without a scope over licence categories,
jurisdictions and sensitivity. So these rules of TUF (specification 1.0) are kept without its code,
each shown by a test:

    * Threshold: distinct keys count, not signatures (section 2.2 and 6.1).
    * Expiry: everything is used at a reference time, and refused from its
      expiry on.
    * Rollback: a root never goes back to a lower version, nor to another
      content of the same version; authorities carry the lowest policy version
      that is still accepted.
    * Freshness: an authority carries the lowest sequence, or the age, of its
      revocation list that a verifier may rely on (`anchor.TrustAnchor` asks for it).
    * Scope: a delegation has no right that its delegator lacks, all the way up.
    * Root rotation: a new root is signed by a threshold of its own keys and by a
      threshold of the keys of the root that was trusted before (section 5.3). A
      root may skip versions; the previous root itself may have expired.

Not kept, because a verifier of files has no repository to talk to: timestamp and
snapshot roles, consistent snapshots.

A state without revocation lists judges by signatures and dates alone: that is for what a run
recorded, and for its own making. A judge of somebody else's files takes the state from
`govray.governance.trust.anchor.TrustAnchor`, which has the lists in it and the root's rule behind
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from govray.errors import Malformed, Untrusted
from govray.governance.formats.document import Document, format_time, parse_time
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import PublicKey
from govray.governance.formats.statement import Sealed, Signed, Subject, check_payload_type, read
from govray.governance.trust.authority import Authority, Delegation, Role, TrustRoot

if TYPE_CHECKING:
    from govray.governance.trust.revocation_list import Revocations, Revoked

MAX_DELEGATIONS = 256
_MAX_BYTES = 1024 * 1024

D = TypeVar("D", bound=Document)


@dataclass(frozen=True)
class Verified(Generic[D]):
    """A document whose signatures met the threshold of an authority of the asked role.

    Attributes:
        document: The predicate.
        digest: ``sha256:<hex>`` of the statement's bytes.
        authorities: Every authority of the role whose threshold the signatures
            meet, the root's first. Never empty.
        keyids: The keys of ``authority`` that signed.
    """

    document: D
    digest: str
    subjects: tuple[Subject, ...]
    authorities: tuple[Authority, ...]
    keyids: frozenset[str]

    @property
    def authority(self) -> Authority:
        """The first of the authorities."""
        return self.authorities[0]


@dataclass(frozen=True)
class TrustState:
    """A verified root with the delegations that hang on it. Made by `load`.

    Attributes:
        digest: ``sha256:<hex>`` of the root's statement.
        authorities: The root's, then the delegated ones.
        delegations: What the delegated ones come from, delegators before delegates.
        revocations: The lists that it was checked against; None without any. What a
            revoked authority signs no longer counts, from when its delegation was revoked.
    """

    root: TrustRoot
    digest: str
    authorities: tuple[Authority, ...]
    delegations: tuple[Sealed[Delegation], ...] = ()
    revocations: Revocations | None = None

    @classmethod
    def load(
        cls,
        root: bytes,
        *,
        at: datetime,
        delegations: Iterable[bytes] = (),
        previous: bytes | None = None,
    ) -> Self:
        """Return the trust that ``root`` and ``delegations`` give at the time ``at``.

        The caller vouches for where ``root`` comes from: it is signed by keys that it
        names itself. Bytes that lie beside what is to be verified are no trust root.

        1. Parse the root and count its own keys' signatures against its threshold.
        2. Refuse it from its expiry on.
        3. With a previous root: the same name, no lower version, and no other content of the same
           version. The previous threshold must also sign a newer one.
        4. Add each delegation whose delegator is known, until none is left; each is
           signed by its delegator's threshold and only narrows.

        Args:
            at: Reference time, aware.
            delegations: Envelopes of `Delegation`, in any order.
            previous: Envelope of the root trusted so far, if there is one.

        Raises:
            Untrusted: A rule above is broken; the message names rule and authority.
        """
        _check_aware(at)
        # 1
        envelope, sealed = _read_root(root, "trust root")
        # 2
        if at >= parse_time(sealed.document.expires):
            raise Untrusted(
                f"the trust root expired at {sealed.document.expires}",
                where="trust root",
                do="Get the current root from whoever gave you this one",
            )
        # 3
        if previous is not None:
            _check_rotation(envelope, sealed, previous)
        # 4
        known = {authority.name: authority for authority in sealed.document.authorities}
        added = _add_delegations(known, delegations)
        return cls(sealed.document, sealed.digest, tuple(known.values()), tuple(added))

    def verify(
        self,
        kind: type[D],
        data: bytes | Envelope,
        *,
        role: Role,
        at: datetime,
        where: str | None = None,
    ) -> Verified[D]:
        """Return the document in ``data``, signed by an authority of ``role`` valid at ``at``.

        1. Parse the envelope, and look at the payload's type; the payload stays closed.
        2. Find the authorities of the role whose threshold of distinct keys signed.
        3. Keep those that hold at ``at``: not expired, by their own expiry and the root's, nor
           by a delegation that was revoked.
        4. Parse the payload, as a document of type ``kind`` and no other.

        Args:
            data: The envelope; parsed already, where it is checked under several roots.
            at: Reference time, aware.

        Raises:
            Untrusted: No signature by the role, too few distinct keys, or expired.
        """
        where = where or kind.__name__
        _check_aware(at)
        # 1
        envelope = data if isinstance(data, Envelope) else Envelope.parse(data, where=where)
        check_payload_type(envelope, where=where)
        # 2
        signed = [
            (authority, envelope.signed_by(authority.keys))
            for authority in self.authorities
            if authority.role == role
        ]
        met = [(authority, by) for authority, by in signed if len(by) >= authority.threshold]
        # 3
        valid = [
            (authority, by)
            for authority, by in met
            if at < min(parse_time(authority.expires), parse_time(self.root.expires))
            and not self._revoked(authority, at)
        ]
        if not valid:
            for authority, _ in met:
                if found := self._revoked(authority, at):
                    raise _revoked_authority(authority, found, where)
            raise _no_authority(role, signed, self.root, where)
        # 4
        sealed = read(kind, envelope, where=where)
        return Verified(
            sealed.document,
            sealed.digest,
            sealed.subjects,
            tuple(authority for authority, _ in valid),
            valid[0][1],
        )

    def held_by(self, key: PublicKey, role: Role, *, at: datetime) -> tuple[Authority, ...]:
        """The authorities of ``role`` for which this key alone can sign at the time ``at``."""
        _check_aware(at)
        return tuple(
            each
            for each in self.authorities
            if each.role == role
            and each.threshold == 1
            and key in each.keys
            and at < min(parse_time(each.expires), parse_time(self.root.expires))
            and not self._revoked(each, at)
        )

    def each_key_counts(self, role: Role) -> Self:
        """The same trust, in which one key of an authority of ``role`` is enough.

        For what one key holder begins and the threshold confirms later: a run, its replays, and the
        folder that other holders will sign. Never for a verdict.
        """
        return replace(
            self,
            authorities=tuple(
                each.model_copy(update={"threshold": 1}) if each.role == role else each
                for each in self.authorities
            ),
        )

    def minimum_policy_version(self, name: str) -> int:
        """Return the lowest accepted version of the policy ``name``; 1 if none is stated.

        The highest that any authority states: a delegate can raise it, not lower it. Names that
        people take for one are one: ``Licences`` and ``licences``, ``eu-data`` and ``eu_data``.
        Otherwise a respelt name would be a policy that has no minimum.
        """
        return max(
            (
                least
                for each in self.authorities
                for stated, least in (each.minimum_policy_versions or {}).items()
                if _spelling(stated) == _spelling(name)
            ),
            default=1,
        )

    def _revoked(self, authority: Authority, at: datetime) -> Revoked | None:
        """That the delegation of ``authority``, or one above it, counts no longer at ``at``."""
        found = self.revocations.delegates.get(authority.name) if self.revocations else None
        return found if found and found.since <= at else None


S = TypeVar("S", bound=Signed)


def check_subjects(verified: Verified[S], *, where: str) -> None:
    """Return if a statement is about what its document says. Raises ``Untrusted``: it is not."""
    if verified.subjects != verified.document.subjects:
        raise Untrusted(
            "the statement's subject is not what its document says",
            where=where,
            do="Ask its signer to sign it again",
        )


def check_follows(root: bytes, previous: bytes) -> None:
    """Refuse a root that does not follow the one that was trusted before, at whatever time.
    Raises ``Untrusted``: step 3 of `TrustState.load`."""
    _check_rotation(*_read_root(root, "trust root"), previous)


def root_name(root: bytes) -> str:
    """The name that a root gives itself; its own signatures are checked, and nothing else."""
    return _read_root(root, "trust root")[1].document.name


def _read_root(data: bytes, where: str) -> tuple[Envelope, Sealed[TrustRoot]]:
    """A root signed by its own threshold. Its keys are in it, so it is parsed first."""
    envelope = Envelope.parse(data, limit=_MAX_BYTES, where=where)
    sealed = read(TrustRoot, envelope, where=where)
    root = sealed.document
    _check_subject(sealed, where)
    _check_signed(envelope, root.keys, root.threshold, "the trust root's own", where)
    return envelope, sealed


def _check_rotation(envelope: Envelope, new: Sealed[TrustRoot], previous: bytes) -> None:
    _, old = _read_root(previous, "previous trust root")
    where, was, now = "trust root", old.document, new.document
    if now.name != was.name:
        raise Untrusted(f"the root is '{now.name}', the trusted one '{was.name}'", where=where)
    if now.version < was.version:
        raise Untrusted(
            f"version {now.version} is older than the trusted version {was.version}",
            where=where,
            do="Use the newer root; a root never goes back",
        )
    if now.version == was.version:
        if new.digest != old.digest:
            raise Untrusted(
                f"two different roots call themselves version {now.version}",
                where=where,
                do="Give a changed root a higher version",
            )
        return
    _check_signed(envelope, was.keys, was.threshold, "the previous root's", where)


def _add_delegations(
    known: dict[str, Authority], delegations: Iterable[bytes]
) -> list[Sealed[Delegation]]:
    """Add the delegated authorities to ``known``, delegators before delegates."""
    added: list[Sealed[Delegation]] = []
    pending: list[tuple[str, Envelope, Sealed[Delegation]]] = []
    for number, data in enumerate(delegations, start=1):
        where = f"delegation {number}"
        if number > MAX_DELEGATIONS:
            raise Malformed(f"more than {MAX_DELEGATIONS} delegations", where=where)
        envelope = Envelope.parse(data, limit=_MAX_BYTES, where=where)
        sealed = read(Delegation, envelope, where=where)
        where = f"{where} ('{sealed.document.authority.name}')"
        _check_subject(sealed, where)
        pending.append((where, envelope, sealed))
    while pending:
        ready = [entry for entry in pending if entry[2].document.delegator in known]
        waiting = [entry for entry in pending if entry[2].document.delegator not in known]
        if not ready:
            where, _, sealed = pending[0]
            raise Untrusted(
                f"its delegator '{sealed.document.delegator}' is not an authority of the root, "
                "nor one that the root leads to",
                where=where,
                do="Give the delegator's own delegation too",
            )
        pending = waiting
        for where, envelope, sealed in ready:
            parent, child = known[sealed.document.delegator], sealed.document.authority
            if child.name in known:
                raise Untrusted(f"the name '{child.name}' is already taken", where=where)
            _check_signed(envelope, parent.keys, parent.threshold, f"'{parent.name}''s", where)
            _check_narrows(child, parent, where)
            known[child.name] = child
            added.append(sealed)
    return added


def _check_narrows(child: Authority, parent: Authority, where: str) -> None:
    """A delegate has no right that its delegator lacks."""
    if child.role != parent.role:
        raise Untrusted(
            f"the role '{child.role}' is not its delegator's, '{parent.role}'", where=where
        )
    if child.expires > parent.expires:  # fixed-width text: the order of time
        raise Untrusted(
            f"it expires at {child.expires}, after its delegator at {parent.expires}", where=where
        )
    for scope in child.scope or ():
        if not any(scope.within(wider) for wider in parent.scope or ()):
            raise Untrusted(
                f"its scope for '{scope.corpus}' is not within any scope of '{parent.name}'",
                where=where,
                do="A delegation only narrows: corpora, licence categories, jurisdictions, "
                "sensitivity",
            )


def _check_signed(
    envelope: Envelope, keys: Sequence[PublicKey], threshold: int, whose: str, where: str
) -> None:
    count = len(envelope.signed_by(keys))
    if count < threshold:
        raise Untrusted(
            f"signed by {count} of {threshold} distinct keys ({whose} threshold)",
            where=where,
            do="Get the missing signatures; two by one key count as one",
        )


def _revoked_authority(authority: Authority, found: Revoked, where: str) -> Untrusted:
    return Untrusted(
        f"the {authority.role} authority '{authority.name}' signed it, whose delegation is revoked "
        f"since {format_time(found.since)} ({found.reason})",
        where=where,
        do=f"That is list {found.sequence} of {found.issuer}; ask its issuer",
    )


def _no_authority(
    role: Role,
    signed: Sequence[tuple[Authority, frozenset[str]]],
    root: TrustRoot,
    where: str,
) -> Untrusted:
    """Why no authority accepts, by the one that came nearest."""
    for authority, by in signed:
        if len(by) >= authority.threshold:
            expires = min(authority.expires, root.expires)
            return Untrusted(
                f"the {role} authority '{authority.name}' signed it but expired at {expires}",
                where=where,
                do="Have it signed by a current authority, or check at the time of its use",
            )
    partly = [(authority, by) for authority, by in signed if by]
    if partly:
        authority, by = max(partly, key=lambda entry: len(entry[1]))
        return Untrusted(
            f"signed by {len(by)} of {authority.threshold} distinct keys of the {role} "
            f"authority '{authority.name}'",
            where=where,
            do="Get the missing signatures; two by one key count as one",
        )
    names = ", ".join(authority.name for authority, _ in signed) or "none"
    return Untrusted(
        f"no signature verifies under any {role} authority of the trust root (it has: {names})",
        where=where,
        do="Check that this is the right trust root and that all delegations are given",
    )


def _check_subject(sealed: Sealed[TrustRoot] | Sealed[Delegation], where: str) -> None:
    if sealed.subjects != sealed.document.subjects:
        raise Malformed("the statement's subject is not the document itself", where=where)


def _spelling(name: str) -> str:
    """What all spellings of a policy's name share. Names are ASCII."""
    return re.sub(r"[._-]+", "-", name.lower()).rstrip("-")


def _check_aware(at: datetime) -> None:
    if at.tzinfo is None:
        raise Malformed(
            "the reference time has no time zone", where="at", do="Use an aware datetime"
        )
