"""The pools of the queue: written by whoever works it off, read by who submits and who looks.

Functions take a session and never commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlmodel import Session, select

from govray.platform.store.tables import PoolRow


def stated(session: Session) -> list[PoolRow]:
    """The pools, in the order of names. Empty where nobody has worked the queue off yet."""
    return sorted(session.exec(select(PoolRow)).all(), key=lambda row: row.name)


def state(session: Session, pools: Sequence[PoolRow]) -> bool:
    """Let the pools be these. Whether that changed anything."""
    rows, given = ({row.name: row for row in each} for each in (stated(session), pools))
    if [row.model_dump() for row in rows.values()] == [
        given[name].model_dump() for name in sorted(given)
    ]:
        return False
    for name in rows.keys() - given.keys():
        session.delete(rows[name])
    for row in given.values():
        session.merge(row)
    return True


def search_room(session: Session, pool: str) -> int | None:
    """Slots that a search takes which does not say how many: half of its pool's, at least one. None
    where nobody knows how large the pool is."""
    row = session.get(PoolRow, pool)
    return None if row is None else max(1, row.slots // 2)


def never(
    pool: str, project: str, slots: int, sizes: Mapping[str, int], most: int | None
) -> str | None:
    """Why such an entry could never start, or None if it can.

    Args:
        most: The slots that the project may hold in the pool; None: what the pool has.
    """
    size = sizes.get(pool)
    if size is None:
        return f"there is no pool {pool!r}; there are: {', '.join(sorted(sizes))}"
    if slots > size:
        return f"it needs {slots} slots, and pool {pool!r} has {size}"
    if most is not None and slots > most:
        return f"it needs {slots} slots, and project {project!r} may hold {most} in pool {pool!r}"
    return None


def never_here(
    session: Session, pool: str, project: str, slots: int, *, brings_folder: bool
) -> str | None:
    """Why such an entry could never start in the pools as stated. None if it can, or if nobody has
    worked the queue off yet."""
    rows = {row.name: row for row in stated(session)}
    if not rows:
        return None
    row = rows.get(pool)
    most = row.most.get(project, row.most_others) if row else None
    why = never(pool, project, slots, {name: each.slots for name, each in rows.items()}, most)
    if why is None and row is not None and not (brings_folder or row.folder):
        why = "it has no working directory, and the queue has none for it"
    return why
