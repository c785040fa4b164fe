"""Whether what the store holds still stands: revoked attestations, and roots without fresh lists.

An attestation was verified when it was indexed. No row says what was revoked since, or that the
lists are too old to know. That is computed here from the current lists, each time that somebody
relies on it.

A model is not verified again: `govray verify` or `govray store rebuild` does that. They show a
revoked credential or delegation, or an attestation revoked by a delegated operator's list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlmodel import Session, col, select

from govray.errors import CouldNotCheck, GovrayError, Refused
from govray.governance.formats.document import format_time
from govray.governance.trust.anchor import PinnedLists, TrustAnchor
from govray.governance.trust.revocation_list import Revoked, stale
from govray.governance.trust.trust_state import TrustState
from govray.governance.trust.verified_lists import VerifiedLists
from govray.platform.store import tables

ANY = "*"


@dataclass(frozen=True)
class RevocationStanding:
    """What is known of revocations at one moment.

    Attributes:
        lists: How many lists were counted.
        lacking: Name of a trust root, or `ANY`, → what its rule of freshness lacks, or why its
            lists do not verify. Nobody knows whether what is under it was revoked.
        revoked: Digest of an attestation → its revocation, where that counts by now.
    """

    lists: int
    lacking: Mapping[str, str]
    revoked: Mapping[str, Revoked]

    def require(self, attestation: str, root: str) -> None:
        """Refuse to rely on a revoked attestation. Raises `CouldNotCheck`: the root asks for a
        list that is not here."""
        if found := self.revoked.get(attestation):
            raise Refused(
                f"revoked since {format_time(found.since)} ({found.reason})",
                where=f"attestation {attestation[:19]}…",
                do=f"That is list {found.sequence} of {found.issuer}; register the model as it "
                "is now",
            )
        if why := self.lacking.get(root) or self.lacking.get(ANY):
            raise CouldNotCheck(
                why,
                where="revocations",
                do="Get the current list from its issuer, and give it with --revocations",
            )


def standing(
    session: Session,
    lists: Sequence[bytes],
    *,
    at: datetime,
    pinned: PinnedLists | None = None,
    verified: VerifiedLists | None = None,
) -> RevocationStanding:
    """What ``lists`` say of what the store holds, by the newest version of each trust root.
    ``pinned``: lists that were accepted earlier; they count beside ``lists``."""
    newest: dict[str, bytes] = {}
    ordered = select(tables.TrustRootRow).order_by(
        col(tables.TrustRootRow.version), col(tables.TrustRootRow.digest)
    )
    for row in session.exec(ordered):
        newest[row.name] = row.envelope
    counted, lacking = 0, {}
    verified = verified or VerifiedLists()
    revoked: dict[str, Revoked] = {}
    for name, envelope in sorted(newest.items()):
        try:
            trust = TrustState.load(envelope, at=at)
            kept = pinned.of(name) if pinned else ()
            anchor = TrustAnchor(envelope, feed=tuple(lists), pinned=kept)
            known = verified.lists(anchor, trust, at=at)
        except GovrayError as error:
            lacking[name] = str(error)
            continue
        if problems := stale(trust, known, at=at):
            lacking[name] = "; ".join(problems)
        if known is None:
            continue
        counted += len(known.lists)
        for digest in known.attestations:
            found = known.of_attestation(digest, ())
            if found and found.since <= at:
                revoked[digest] = found
    return RevocationStanding(counted, lacking, revoked)
