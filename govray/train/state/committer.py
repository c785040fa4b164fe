"""Commits of one run, written behind the training loop.

The loop waits for the copy to host memory. One thread on rank 0 serialises, hashes, writes and
commits it. Then it applies the retention rules.

If the model is sharded, every rank has such a thread for its own parts. Rank 0 stages the commit
and says where, before the threads begin. When they have written, they exchange names, sizes and
digests, or errors, over a process group of their own. Rank 0's thread then publishes. So no rank
polls storage for another's file, and a rank that is gone ends the wait at once. Either all ranks
start a thread or none does. A thread that failed tells the others all the same.

Invariants:

* At most one commit is in flight; the next one waits for it.
* A failed commit is known only to the ranks that wrote it, until the next agreement carries it.
  After the last step, `Commits.settle` shares the outcome.
* Nothing is begun of a commit that its disk has no room for.
* The manifest is rank 0's, is the last file, and names what all ranks wrote.
* What the commit names beside itself is there before the manifest.
* Where there is a register, older commits stay until it has the new one.
* A process that ends with a commit in flight leaves nothing that loads. It leaves a ``….partial``
  folder or, on remote storage, a folder without a manifest.

A failure stops the run through the agreement.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from govray.engine.collective.agreement import lost_peers_reported
from govray.errors import GovrayError
from govray.governance.record.gates import Gate
from govray.governance.record.ledger import AnyLeaf
from govray.storage.place import place
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.commit_reader import FileEntry
from govray.train.checkpoint.room import require_room
from govray.train.checkpoint.storage import storage_of
from govray.train.inputs.order import Order
from govray.train.run_folder import events
from govray.train.run_folder.clock import now
from govray.train.run_folder.register_posts import register_of
from govray.train.run_folder.run_lock import Fence
from govray.train.state import garbage_collection
from govray.train.state.carried_governance import keep
from govray.train.state.snapshot import SUPERSEDED, Capture, TrainingState

PATIENCE_S = 10.0
"""How often rank 0 tells the others that it still waits for its thread: far below the timeout of
any process group."""

PARTS_PATIENCE = timedelta(minutes=30)
"""How long the ranks of a sharded model wait for the slowest one to write its parts."""

_log = logging.getLogger(__name__)


class Commits:
    """The commits of one worker's run. Construction is collective: every rank makes one.

    Args:
        resumed: The first step of this attempt.
        fence: Whether this attempt may still write.

    Attributes:
        whole: The first step that the newest whole commit does not hold, as rank 0 knows.
    """

    def __init__(self, state: TrainingState, order: Order, resumed: int, fence: Fence) -> None:
        self.whole = resumed
        self._state = state
        self._order = order
        self._fence = fence
        self._folder = place(order.folder)
        self._storage = storage_of(self._folder)
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        # The threads' process group. It exists only if every rank writes parts.
        self._meeting = (
            dist.new_group(backend="gloo", timeout=PARTS_PATIENCE) if state.sharded else None
        )
        self._thread: threading.Thread | None = None
        self._failure: GovrayError | None = None
        self._floor: int | None = None
        self._branch = 0
        self._register = register_of(order.run_id) if self._rank == 0 else None
        if self._rank == 0:
            try:
                if self._register is not None:
                    self._register.standing()  # who else posts from here on is found out
                self._clear(resumed)
            except GovrayError as error:
                self._failure = error

    @property
    def failure(self) -> GovrayError | None:
        """Why this rank's commit failed, if it did."""
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
        validation: Mapping[str, Any] | None = None,
    ) -> None:
        """Copy the state after which step ``step`` is next, and write it. Every rank calls it.

        Ranks that write wait for the commit before. A failure shows in `failure`.

        Args:
            step: The first step that the state does not hold.
            leaves: Ledger leaves of all steps before; only rank 0's are used.
            gates: Of all steps before; only rank 0's are used.
            stopping: Rank 0 already knows that the run must stop and not commit.
            floor: The newest commit of this step or before is kept, for a rollback.
        """
        self._wait(None)
        self._floor = floor
        self._branch = leaves[-1].branch if leaves else 0
        capture = None
        try:
            capture = self._state.capture(
                step, self._order, leaves, loss=loss, gates=gates, validation=validation
            )
        except Exception as error:
            # After the collective: the other ranks go on to the agreement and learn of it there.
            if self._meeting is None and not isinstance(error, GovrayError):
                raise
            self._fail(error, step)
        write: Callable[[Capture], None] | None = self._write
        ready = capture is not None and not stopping and not self._failure
        if self._meeting is not None:
            write = self._staged(self._meeting, step, capture.size if capture and ready else None)
        if capture is None or write is None or not ready:
            return
        self._thread = threading.Thread(target=write, args=(capture,), name=f"govray-commit-{step}")
        self._thread.start()

    def _staged(
        self, meeting: dist.ProcessGroup, step: int, size: int | None
    ) -> Callable[[Capture], None] | None:
        """What writes this rank's parts, if all ranks can. Collective. ``size``: of this rank's
        bytes; None if it has none to write."""
        sizes = _gathered(size, meeting)
        folder = staged = None
        if self._rank == 0 and size is not None:
            try:
                folder = self._storage.place(step, (self._fence.driver, self._fence.attempt))
                require_room(folder, sum(each or 0 for each in sizes))
                staged = commit_folder.stage(folder)
            except Exception as error:
                self._fail(error, step, folder)
        failed = str(self._failure) if self._failure else None
        told = _gathered((size is not None and not failed, failed, folder, staged), meeting)
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
            trouble: The error for which rank 0 stops in any case.

        Raises:
            GovrayError: A commit failed; every rank raises the same.
        """
        waiting, failed = True, GovrayError(trouble) if trouble else None
        newest: commit_folder.Folder | None = None
        while waiting:
            if self._rank == 0 and self._wait(PATIENCE_S):
                failed = failed or self._failure
                waiting = False
                if failed is None:
                    failed, newest = self._newest()
            if dist.is_initialized():
                outcome: list[Any] = [waiting, failed, newest]
                dist.broadcast_object_list(outcome, src=0)
                waiting, failed, newest = outcome
        if failed is not None:
            raise failed
        return newest

    def _newest(self) -> tuple[GovrayError | None, commit_folder.Folder | None]:
        """The newest commit if there is one, or why it can't be looked up."""
        try:
            return None, next((folder for _, folder in self._storage.commits()), None)
        except GovrayError as error:
            return error, None

    def _wait(self, seconds: float | None) -> bool:
        """Wait at most this long; return whether nothing is in flight."""
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    def _write(self, capture: Capture) -> None:
        folder = self._storage.place(capture.step, (self._fence.driver, self._fence.attempt))
        try:
            require_room(folder, capture.size)
            files = capture.files(keep(self._folder, self._storage, capture.tiles))
            digest = commit_folder.commit(folder, files, check=self._fence.check)
        except Exception as error:  # any error must reach the agreement
            self._fail(error, capture.step, folder)
            return
        if self._told(capture, digest):
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
            carried = None
            if capture.summary is not None:
                carried = keep(self._folder, self._storage, capture.tiles)
            for name, content in capture.files(carried).items():
                entries[name] = commit_folder.write(staged, name, content)
        except Exception as error:  # all ranks must learn of any error
            self._fail(error, capture.step, folder)
        try:
            failed = str(self._failure) if self._failure else None
            told = _gathered((entries, failed), meeting)
            self._hear(failed for _, failed in told)
            if self._rank == 0 and not self._failure:
                every = {name: entry for each, _ in told for name, entry in each.items()}
                digest = commit_folder.publish(staged, folder, every, check=self._fence.check)
                if self._told(capture, digest):
                    self._retain()
                return
        except Exception as error:
            self._fail(error, capture.step, folder)
        if self._rank == 0:
            commit_folder.discard(staged)

    def _told(self, capture: Capture, digest: str) -> bool:
        """Register a commit, and record in the event log when it became whole: file times do not
        keep it. False if the register did not take it."""
        step = capture.step
        try:
            if self._register is not None and capture.summary is not None:
                head = capture.summary["ledger"]
                self._register.committed(
                    branch=self._branch,
                    step=step,
                    commit=digest,
                    size=head["size"],
                    root=head["root"] if head["size"] else None,
                )
        except GovrayError as error:
            self._fail(error, step)
            return False
        self.whole = step
        with suppress(OSError):  # a lost line loses only the time
            events.append(self._folder, events.Committed(at=now(), step=step, digest=digest))
        return True

    def _retain(self) -> None:
        try:
            garbage_collection.apply(self._folder, self._order.experiment.keep, floor=self._floor)
        except (GovrayError, OSError) as error:
            # An old commit that stays does no harm; `govray checkpoint gc` reports the error again.
            _log.warning("old checkpoints were not deleted: %s", error)

    def _fail(
        self, error: Exception, step: int, folder: commit_folder.Folder | None = None
    ) -> None:
        """Remember the first failure; later ones follow from it."""
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
        """Put aside commits of an earlier attempt beyond the step where this one begins.
        Such a folder was not whole when the run was resolved, or came after that."""
        for step, folder in self._storage.commits():
            if step > resumed:
                commit_folder.put_aside(folder, SUPERSEDED)


def _gathered(own: Any, group: dist.ProcessGroup) -> list[Any]:
    """Every rank's value, by rank."""
    gathered: list[Any] = [None] * dist.get_world_size()
    with lost_peers_reported():
        dist.all_gather_object(gathered, own, group=group)
    return gathered
