"""Numbers for Prometheus: of queue and attestor as the store has them, prepared data, and disks.

They are counted when they are asked for, so each replica of a service says the same. A reconciler
that died is seen by what it left.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from shutil import disk_usage

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlmodel import Session, col

from govray.governance.formats.document import parse_time
from govray.governance.record.prepare_manifest import MANIFEST_FILE
from govray.platform.store import pools
from govray.platform.store.leases import RECONCILER
from govray.platform.store.queue_entries import HELD
from govray.platform.store.run_owners import RUN_KINDS
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import Lease, QueueEntry

ENTRIES = ("govray_queue_entries", "Entries of the queue that wait or hold slots")
SLOTS = ("govray_queue_slots", "Slots of a pool")
LEASE = ("govray_queue_lease_seconds", "Seconds until the right to work the queue off ends")
DECIDED = ("govray_runs_decided", "Runs of the queue whose attestor has decided")
UNDECIDED = ("govray_runs_undecided_seconds", "Age of the oldest run that no attestor has decided")
PREPARED = ("govray_prepared_data", "Folders of prepared data: ready, and begun and not ended")
FREE = ("govray_disk_free_bytes", "Bytes left on a disk that the service writes to")
SIZE = ("govray_disk_size_bytes", "Bytes of that disk")


class _Counted(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def text(session: Session, now: datetime, disks: dict[str, Path]) -> bytes:
    """All of them in Prometheus' text format.

    Args:
        disks: Folders that the service writes to, by what they hold.
    """
    registry = CollectorRegistry()
    registry.register(
        _Counted(
            [
                *_queue(session, now),
                *_attestor(session, now),
                *_prepared(disks.get("storage")),
                *_disks(disks),
            ]
        )
    )
    return generate_latest(registry)


def _queue(session: Session, now: datetime) -> Iterator[Metric]:
    entries = GaugeMetricFamily(*ENTRIES, labels=("pool", "state"))
    pool, state = col(QueueEntry.pool), col(QueueEntry.state)
    shown = state.in_((ExperimentState.QUEUED, *HELD))
    counted = select(pool, state, func.count()).where(shown).group_by(pool, state)
    for name, each, number in session.execute(counted):
        entries.add_metric((name, each), number)
    yield entries
    slots = GaugeMetricFamily(*SLOTS, labels=("pool",))
    for row in pools.stated(session):
        slots.add_metric((row.name,), row.slots)
    yield slots
    if (lease := session.get(Lease, RECONCILER)) is not None:
        yield GaugeMetricFamily(*LEASE, value=(parse_time(lease.until) - now).total_seconds())


def _attestor(session: Session, now: datetime) -> Iterator[Metric]:
    attested = col(QueueEntry.attested)
    counted = select(attested, func.count()).where(attested.is_not(None)).group_by(attested)
    found = {row[0]: row[1] for row in session.execute(counted)}
    decided = GaugeMetricFamily(*DECIDED, labels=("state",))
    for state in ("ATTESTED", "NOT_ATTESTED"):  # a series that begins at 1 never rose
        decided.add_metric((state,), found.get(state, 0))
    yield decided
    if not found:
        return  # no attestor has ever decided: nobody waits for one
    oldest = session.scalar(
        select(func.min(QueueEntry.finished)).where(
            attested.is_(None),
            col(QueueEntry.kind).in_(RUN_KINDS),
            col(QueueEntry.state) == ExperimentState.COMPLETED,
        )
    )
    age = (now - parse_time(oldest)).total_seconds() if oldest else 0.0
    yield GaugeMetricFamily(*UNDECIDED, value=age)


def _prepared(storage: Path | None) -> Iterator[Metric]:
    """A preparation that died leaves what it had begun, until the next one of the same data."""
    if storage is not None:
        below = storage / "prepared"
        prepared = GaugeMetricFamily(*PREPARED, labels=("state",))
        prepared.add_metric(("ready",), len([*below.glob(f"[!.]*/{MANIFEST_FILE}")]))
        prepared.add_metric(("begun",), len([*below.glob(".*.partial")]))
        yield prepared


def _disks(disks: dict[str, Path]) -> Iterator[Metric]:
    free, size = (GaugeMetricFamily(*each, labels=("holds",)) for each in (FREE, SIZE))
    for holds, folder in disks.items():
        if folder.is_dir():
            usage = disk_usage(folder)
            free.add_metric((holds,), usage.free)
            size.add_metric((holds,), usage.total)
    yield from (free, size)
