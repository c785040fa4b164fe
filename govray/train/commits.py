"""Commits of one run, written behind the training loop.

The loop waits for the copy to host memory; one thread on rank 0 serialises,
hashes, writes and commits it, then applies the rules of retention.

Invariants:

* At most one commit is in flight; the next one waits for it.
* A commit that failed is known to rank 0 alone until the next agreement, in which
  it travels; `Commits.settle`, after the last step, shares the outcome by itself.
* A process that ends with a commit in flight leaves what never loads: a ``….partial``
  folder or, on remote storage, one without a manifest.

What it does not do: stop a run. That is the agreement's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from govray.engine import checkpoint
from govray.errors import GovrayError
from govray.governance.gates import Gate
from govray.governance.ledger import AnyLeaf
from govray.train import collection
from govray.train.driver import Fence
from govray.train.order import Order
from govray.train.snapshot import SUPERSEDED, Capture, State
from govray.train.storage import storage_of

PATIENCE_S = 10.0
"""How long rank 0 waits for its thread before it tells the others that it still does: far below
the timeout of any process group."""

_log = logging.getLogger(__name__)


class Commits:
    """The commits of one worker's run. Every rank makes one; rank 0's writes.

    Args:
        state: What is captured.
        order: The run's.
        resumed: The first step of this attempt.
        fence: Whether this attempt may still write.
    """

    def __init__(self, state: State, order: Order, resumed: int, fence: Fence) -> None:
        self._state = state
        self._order = order
        self._fence = fence
        self._folder = Path(order.folder)
        self._storage = storage_of(self._folder)
        self._rank = dist.get_rank() if dist.is_initialized() else 0
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

        Waits, on rank 0, for the commit before. A failure shows in `failure`.

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
        try:
            capture = self._state.capture(step, self._order, leaves, loss=loss, gates=gates)
        except GovrayError as error:
            # Rank 0 alone captures, after the ranks have met: the others go on to the
            # agreement, where they hear of it.
            self._failure = self._failure or error
            return
        if capture is None or stopping or self._failure:
            return
        self._thread = threading.Thread(
            target=self._write, args=(capture,), name=f"govray-commit-{step}"
        )
        self._thread.start()

    def settle(self, trouble: str | None) -> checkpoint.Folder | None:
        """Wait until nothing is in flight, and share the outcome. Every rank calls it.

        Args:
            trouble: Why rank 0 stops in any case.

        Returns:
            The newest commit.

        Raises:
            GovrayError: A commit failed on rank 0; every rank raises the same.
        """
        waiting, failed, newest = True, trouble, None
        while waiting:
            if self._rank == 0 and self._wait(PATIENCE_S):
                failed = failed or (str(self._failure) if self._failure else None)
                waiting = False
                if not failed:
                    failed, newest = self._newest()
            if dist.is_initialized():
                outcome = [waiting, failed, newest]
                dist.broadcast_object_list(outcome, src=0)
                waiting, failed, newest = outcome
        if failed:
            raise GovrayError(failed)
        return newest

    def _newest(self) -> tuple[str | None, checkpoint.Folder | None]:
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
            checkpoint.commit(folder, capture.files(), check=self._fence.check)
        except Exception as error:  # whatever it is, it must reach the agreement
            described = (
                str(error) if isinstance(error, GovrayError) else f"{type(error).__name__}: {error}"
            )
            self._failure = GovrayError(
                f"the checkpoint of step {capture.step} could not be written: {described}",
                where=str(folder),
                do="Earlier checkpoints are whole; free the storage and run again to resume",
            )
            return
        try:
            collection.apply(self._folder, self._order.keep, floor=self._floor)
        except (GovrayError, OSError) as error:
            # What stays too long harms nothing; `govray checkpoint gc` says it again.
            _log.warning("old checkpoints were not deleted: %s", error)

    def _clear(self, resumed: int) -> None:
        """Put aside what an earlier attempt left beyond the step where this one begins.

        Such a folder was not whole when the run was resolved, or came after that.
        """
        for step, folder in self._storage.commits():
            if step > resumed:
                checkpoint.put_aside(folder, SUPERSEDED)
