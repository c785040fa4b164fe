"""A run's files on an object store: the same events and ledger as on a disk, and locks that a
store has alone.
"""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from govray.errors import UsageError
from govray.governance.formats import canonical_json
from govray.storage.bucket_path import BucketPath, ObjectStat
from govray.storage.place import Place
from govray.train.run_folder import events, ledger_wal, run_lock
from govray.train.run_folder.clock import now
from govray.train.run_folder.ledger_wal import LogFile


def progress(step: int) -> events.Progress:
    return events.Progress(at=now(), step=step, loss=1.0)


def test_writers_lose_none_of_each_others_events(
    store: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "OBJECT_BYTES", 500)

    def write(first: int) -> None:
        for step in range(first, first + 6):
            events.append(store, progress(step))

    threads = [threading.Thread(target=write, args=(100 * k,)) for k in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    found = [event.step for event in events.read(store) if isinstance(event, events.Progress)]
    assert sorted(found) == [100 * k + step for k in range(3) for step in range(6)]
    for k in range(3):  # each writer's stay in their order
        own = [step for step in found if step // 100 == k]
        assert own == sorted(own)


@pytest.mark.parametrize("seed", range(3))
def test_a_log_on_a_store_is_the_file_on_a_disk(
    store: BucketPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(ledger_wal, "SEGMENT_BYTES", 64)
    drawn = random.Random(seed)
    disk, objects = LogFile(tmp_path / "log"), LogFile(store / "log")
    disk.replace(b"")
    objects.replace(b"")
    most = 0
    for _ in range(25):
        data = b"".join(b"%d\n" % drawn.randrange(10**9) for _ in range(drawn.randrange(5)))
        held = disk.read()
        ends = [0, *(at + 1 for at, byte in enumerate(held) if byte == 10)]
        offset = drawn.choice([len(held), len(held), drawn.choice(ends)])
        for each in (disk, objects):
            each.write_from(offset, data, durable=True)
        assert LogFile(store / "log").read() == disk.read()
        if drawn.random() < 0.2:  # another process goes on
            objects = LogFile(store / "log")
            objects.replace(objects.read())
        most = max(most, len(list((store / "log").iterdir())))
    assert most > 1


def drive(run: Place, done: threading.Barrier, got: list[int], refused: list[UsageError]) -> None:
    """Hold the run until all have tried."""
    try:
        with run_lock.hold(run) as number:
            got.append(number)
            done.wait(60)
    except UsageError as error:
        refused.append(error)
        done.wait(60)


def test_of_drivers_that_come_at_once_the_store_refuses_all_but_one(
    store: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        got: list[int] = []
        refused: list[UsageError] = []
        done = threading.Barrier(5)

        threads = [
            threading.Thread(target=drive, args=(store, done, got, refused)) for _ in range(4)
        ]
        for each in threads:
            each.start()
        done.wait(60)
        for each in threads:
            each.join()
        assert (len(got), len(refused)) == (1, 3)
    # Without the condition of the write, each of them would have the run.
    monkeypatch.setattr(BucketPath, "create", BucketPath.write_bytes)
    (store / run_lock.LOCK).unlink()
    with run_lock.hold(store), run_lock.hold(store):
        pass


def test_a_driver_of_another_machine_has_the_run_until_it_renews_no_more(
    store: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = store / run_lock.LOCK
    lock.create(canonical_json.encode({"host": "elsewhere", "pid": 1, "since": now()}))
    assert run_lock.driving(store)
    with pytest.raises(UsageError, match="process 1 on elsewhere"), run_lock.hold(store):
        pytest.fail("two drivers")
    real = BucketPath.stat

    def long_ago(path: BucketPath) -> ObjectStat:
        found = real(path)
        old = datetime.now(UTC) - timedelta(seconds=run_lock.LEASE_S + 1)
        return ObjectStat(found.st_size, found.tag, old)

    monkeypatch.setattr(BucketPath, "stat", long_ago)
    assert not run_lock.driving(store)
    with run_lock.hold(store) as number:
        assert number == 1
