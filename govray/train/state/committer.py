"""Commits of one run, written behind the training loop.

The loop waits for the copy to host memory; one thread on rank 0 serialises,
hashes, writes and commits it, then applies the rules of retention.

Of a sharded model every rank has such a thread, for its own parts. Rank 0 stages the
commit and says where, before the threads begin; when they have written, they tell each
other names, sizes and digests, or what went wrong, over a process group that nothing else
uses; rank 0's then publishes. So no rank waits for a file of another to appear, which
would take a guess at how long that may be and at what the storage shows to whom, and a
rank that is gone ends the wait at once. All ranks start a thread or none does, and a
thread that failed tells the others all the same.

Invariants:

* At most one commit is in flight; the next one waits for it.
* A commit that failed is known to the ranks that wrote it alone until the next agreement,
  in which it travels; `Commits.settle`, after the last step, shares the outcome by itself.
* The manifest is rank 0's, is the last file, and names what all ranks wrote.
* A process that ends with a commit in flight leaves what never loads: a ``….partial``
  folder or, on remote storage, one without a manifest.

What it does not do: stop a run. That is the agreement's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from govray.checkpoint import commit_folder
from govray.checkpoint.commit_manifest import FileEntry
from govray.checkpoint.storage import storage_of
from govray.engine.collective.agreement import lost_peers_reported
from govray.errors import GovrayError
from govray.governance.record.gates import Gate
from govray.governance.record.ledger import AnyLeaf
from govray.train.inputs.order import Order
from govray.train.run_folder import events
from govray.train.run_folder.clock import now
from govray.train.run_folder.run_lock import Fence
from govray.train.state import garbage_collection
from govray.train.state.snapshot import SUPERSEDED, Capture, TrainingState

PATIENCE_S = 10.0
"""How long rank 0 waits for its thread before it tells the others that it still does: far below
the timeout of any process group."""

PARTS_PATIENCE = timedelta(minutes=30)
"""How long the ranks of a sharded model wait for the slowest to have written its parts."""

_log = logging.getLogger(__name__)


class Commits:
    """The commits of one worker's run. Every rank makes one, which is collective.

    Args:
        state: What is captured.
        order: The run's.
        resumed: The first step of this attempt.
        fence: Whether this attempt may still write.
    """

    def __init__(self, state: TrainingState, order: Order, resumed: int, fence: Fence) -> None:
        self._state = state
        self._order = order
        self._fence = fence
        self._folder = Path(order.folder)
        self._storage = storage_of(self._folder)
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        # Where there is one, every rank writes: its threads meet in it, and nothing else does.
        self._meeting = (
            dist.new_group(backend="gloo", timeout=PARTS_PATIENCE) if state.sharded else None
        )
        self._thread: threading.Thread | None = None
        self._failure: GovrayError | None = None
        self._floor: int | None = None
        if self._rank == 0:
            try:
                self._clear(resumed)
            except GovrayError as error:
                self._failure = error

    @property
    def failure(self) -> GovrayError | None:
        """Why a commit of this rank's failed, once it did."""
        return self._failure

    def begin(
        self,
        step: int,
        leaves: Sequence[AnyLeaf],
        gates: Sequence[Gate] = (),
        *,
        loss: float | None,
        stopping: bool,
        floor: int | None = None,
    ) -> None:
        """Copy the state after which step ``step`` is next, and write it. Every rank calls it.

        Waits, on ranks that write, for the commit before. A failure shows in `failure`.

        Args:
            step: The first step that the state does not hold.
            leaves: Ledger leaves of all steps before; rank 0's count.
            gates: Of all steps before; rank 0's count.
            loss: Mean loss since the commit before.
            stopping: Rank 0 knows already that the run must stop, and must not commit.
            floor: The newest commit of this step or before stays too, for a rollback.
        """
        self._wait(None)
        self._floor = floor
        capture = None
        try:
            capture = self._state.capture(step, self._order, leaves, loss=loss, gates=gates)
        except Exception as error:
            # After the ranks have met: the others go on to the agreement, where they hear of it.
            if self._meeting is None and not isinstance(error, GovrayError):
                raise
            self._fail(error, step)
        write: Callable[[Capture], None] | None = self._write
        ready = capture is not None and not stopping and not self._failure
        if self._meeting is not None:
            write = self._staged(self._meeting, step, ready)
        if capture is None or write is None or not ready:
            return
        self._thread = threading.Thread(target=write, args=(capture,), name=f"govray-commit-{step}")
        self._thread.start()

    def _staged(
        self, meeting: dist.ProcessGroup, step: int, ready: bool
    ) -> Callable[[Capture], None] | None:
        """What writes this rank's parts, if all ranks can. Collective."""
        folder = staged = None
        if self._rank == 0 and ready:
            try:
                folder = self._storage.place(step, (self._fence.driver, self._fence.attempt))
                staged = commit_folder.stage(folder)
            except Exception as error:
                self._fail(error, step, folder)
        failed = str(self._failure) if self._failure else None
        told = _gathered((ready and not failed, failed, folder, staged), meeting)
        self._hear(failed for _, failed, _, _ in told)
        if not all(willing for willing, _, _, _ in told):
            if staged is not None:
                commit_folder.discard(staged)
            return None
        _, _, folder, staged = told[0]
        return partial(self._write_parts, folder, staged, meeting)

    def settle(self, trouble: str | None) -> commit_folder.Folder | None:
        """Wait until nothing is in flight, and share the outcome. Every rank calls it.

        Args:
            trouble: Why rank 0 stops in any case.

        Returns:
            The newest commit.

        Raises:
            GovrayError: A commit failed; every rank raises the same.
        """
        waiting, failed = True, trouble
        newest: commit_folder.Folder | None = None
        while waiting:
            if self._rank == 0 and self._wait(PATIENCE_S):
                failed = failed or (str(self._failure) if self._failure else None)
                waiting = False
                if not failed:
                    failed, newest = self._newest()
            if dist.is_initialized():
                outcome: list[Any] = [waiting, failed, newest]
                dist.broadcast_object_list(outcome, src=0)
                waiting, failed, newest = outcome
        if failed:
            raise GovrayError(failed)
        return newest

    def _newest(self) -> tuple[str | None, commit_folder.Folder | None]:
        """Why it can't be looked up, or the newest commit if there is one."""
        try:
            return None, next((folder for _, folder in self._storage.commits()), None)
        except GovrayError as error:
            return str(error), None

    def _wait(self, seconds: float | None) -> bool:
        """Whether nothing is in flight, after so many seconds at most."""
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    def _write(self, capture: Capture) -> None:
        folder = self._storage.place(capture.step, (self._fence.driver, self._fence.attempt))
        try:
            digest = commit_folder.commit(folder, capture.files(), check=self._fence.check)
        except Exception as error:  # whatever it is, it must reach the agreement
            self._fail(error, capture.step, folder)
            return
        self._tell(capture.step, digest)
        self._retain()

    def _write_parts(
        self,
        folder: commit_folder.Folder,
        staged: commit_folder.Folder,
        meeting: dist.ProcessGroup,
        capture: Capture,
    ) -> None:
        entries: dict[str, FileEntry] = {}
        try:
            for name, content in capture.files().items():
                entries[name] = commit_folder.write(staged, name, content)
        except Exception as error:  # whatever it is, all ranks must hear of it
            self._fail(error, capture.step, folder)
        try:
            failed = str(self._failure) if self._failure else None
            told = _gathered((entries, failed), meeting)
            self._hear(failed for _, failed in told)
            if self._rank == 0 and not self._failure:
                every = {name: entry for each, _ in told for name, entry in each.items()}
                digest = commit_folder.publish(staged, folder, every, check=self._fence.check)
                self._tell(capture.step, digest)
        except Exception as error:
            self._fail(error, capture.step, folder)
        if self._rank == 0:
            if self._failure:
                commit_folder.discard(staged)
            else:
                self._retain()

    def _tell(self, step: int, digest: str) -> None:
        """Write into the event log when the commit became whole: files do not keep it."""
        with suppress(OSError):  # a line lost costs no more than the time
            events.append(self._folder, events.Committed(at=now(), step=step, digest=digest))

    def _retain(self) -> None:
        try:
            garbage_collection.apply(self._folder, self._order.keep, floor=self._floor)
        except (GovrayError, OSError) as error:
            # What stays too long harms nothing; `govray checkpoint gc` says it again.
            _log.warning("old checkpoints were not deleted: %s", error)

    def _fail(
        self, error: Exception, step: int, folder: commit_folder.Folder | None = None
    ) -> None:
        """Remember the first failure, which is the one that matters.

        Args:
            folder: Where the commit was to lie; None if it was not begun.
        """
        if self._failure:
            return
        if isinstance(error, GovrayError) and folder is None:
            self._failure = error
            return
        described = (
            str(error) if isinstance(error, GovrayError) else f"{type(error).__name__}: {error}"
        )
        rank = "" if self._meeting is None else f"rank {self._rank}: "
        self._failure = GovrayError(
            f"the checkpoint of step {step} could not be written: {rank}{described}",
            where=str(folder or self._folder),
            do="Earlier checkpoints are whole; free the storage and run again to resume",
        )

    def _hear(self, failures: Iterable[str | None]) -> None:
        """Take over the failure of the lowest rank that has one."""
        if not self._failure and (told := next(filter(None, failures), None)):
            self._failure = GovrayError(told)

    def _clear(self, resumed: int) -> None:
        """Put aside what an earlier attempt left beyond the step where this one begins.

        Such a folder was not whole when the run was resolved, or came after that.
        """
        for step, folder in self._storage.commits():
            if step > resumed:
                commit_folder.put_aside(folder, SUPERSEDED)


def _gathered(own: Any, group: dist.ProcessGroup) -> list[Any]:
    """Every rank's value, by rank.

    Raises:
        InfrastructureFailed: Another rank is gone.
    """
    gathered: list[Any] = [None] * dist.get_world_size()
    with lost_peers_reported():
        dist.all_gather_object(gathered, own, group=group)
    return gathered
