"""What verifying registered models again gave: the newest outcome of each, and its changes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import func, tuple_
from sqlmodel import Session, col, select

from govray.platform.store.tables import Reverification

MOST_CHANGES = 50


def newest(session: Session, attestations: Collection[str]) -> dict[str, Reverification]:
    """Attestation → its last outcome, of those that were verified again."""
    r = Reverification
    last = (
        select(r.attestation, func.max(r.number))
        .where(col(r.attestation).in_(attestations))
        .group_by(col(r.attestation))
    )
    rows = session.exec(select(r).where(tuple_(col(r.attestation), col(r.number)).in_(last)))
    return {row.attestation: row for row in rows}


def changes(session: Session, attestation: str) -> Sequence[Reverification]:
    """The outcomes of one model, the newest first, at most `MOST_CHANGES`."""
    r = Reverification
    return session.exec(
        select(r)
        .where(r.attestation == attestation)
        .order_by(col(r.number).desc())
        .limit(MOST_CHANGES)
    ).all()
