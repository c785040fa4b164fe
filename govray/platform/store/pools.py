"""The pools of the queue: written by whoever works it off, read by who submits and who looks.

Functions take a session and never commit.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlmodel import Session, select

from govray.platform.store.tables import Pool


def sizes(session: Session) -> dict[str, int]:
    """Pool → slots, in the order of names. Empty where nobody has worked the queue off yet."""
    rows = session.exec(select(Pool)).all()
    return {row.name: row.slots for row in sorted(rows, key=lambda row: row.name)}


def state(session: Session, pools: Mapping[str, int]) -> bool:
    """Let the pools be these. Whether that changed anything."""
    rows = {row.name: row for row in session.exec(select(Pool)).all()}
    if {name: row.slots for name, row in rows.items()} == dict(pools):
        return False
    for name in rows.keys() - pools.keys():
        session.delete(rows[name])
    for name, slots in pools.items():
        session.merge(Pool(name=name, slots=slots))
    return True


def search_room(session: Session, pool: str) -> int | None:
    """Slots that a search takes which does not say how many: half of its pool's, at least one. None
    where nobody knows how large the pool is."""
    row = session.get(Pool, pool)
    return None if row is None else max(1, row.slots // 2)
