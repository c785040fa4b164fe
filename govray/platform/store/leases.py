"""A lease: the right to do something alone, until a time, renewed while it is held.

Its taker names itself. It is free where nobody has it, or where its time has passed. The
database decides between two that take it at once: an update names the row as it was read. Times are
arguments, so clocks of the holders must agree to some seconds, less than a lease lasts.
"""

from __future__ import annotations

from sqlalchemy import update
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col

from govray.platform.store.tables import Lease

RECONCILER = "reconciler"


def standstill(session: Session, *, at: str) -> str | None:
    """Why what is in the queue waits, where nobody works it off at this time; None: a process does.
    For answers, pages and commands alike."""
    row = session.get(Lease, RECONCILER)
    if row is not None and row.until > at:
        return None
    told = f"since {row.until}" if row else "yet"
    return (
        f"Nobody works off the queue {told}. "
        "The cluster's operator does by: govray queue run deploy/queue.yaml"
    )


def take(session: Session, name: str, holder: str, *, at: str, until: str) -> bool:
    """Take or renew the lease, and commit. Whether ``holder`` has it now. ``at``: now,
    ``YYYY-MM-DDTHH:MM:SSZ``. ``until``: when it ends if nobody renews it."""
    row = session.get(Lease, name, populate_existing=True)
    if row is None:
        session.add(Lease(name=name, holder=holder, until=until))
        try:
            session.commit()
        except IntegrityError:  # another was faster
            session.rollback()
            return False
        return True
    if row.holder != holder and row.until > at:
        return False
    taken = session.connection().execute(
        update(Lease)
        .where(
            col(Lease.name) == name,
            col(Lease.holder) == row.holder,
            col(Lease.until) == row.until,
        )
        .values(holder=holder, until=until)
    )
    session.commit()
    return bool(taken.rowcount)


def release(session: Session, name: str, holder: str, *, at: str) -> None:
    """End the lease if ``holder`` has it, and commit."""
    session.connection().execute(
        update(Lease).where(col(Lease.name) == name, col(Lease.holder) == holder).values(until=at)
    )
    session.commit()
