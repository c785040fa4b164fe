"""What rank 0 writes down of a run as it goes: the ledger's leaves, events and the loop's metrics.

What goes wrong here is carried into the next agreement, so that all ranks stop together.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from govray.errors import GovrayError
from govray.governance.record.gates import Gate
from govray.governance.record.ledger import AnyLeaf, GradientNorms, Leaf
from govray.storage.place import Place
from govray.train.experiment.sections import GROUP
from govray.train.run_folder import figures
from govray.train.run_folder.clock import now
from govray.train.run_folder.events import EndedEarly, Gated, Memorized, Reported, append
from govray.train.run_folder.figures import Figure
from govray.train.run_folder.ledger_wal import FILE, WriteAhead
from govray.train.run_folder.loop_metrics import MetricLog
from govray.train.run_folder.run_lock import Fence
from govray.train.worker.memorization_watch import Seen


class Recorder:
    """Keeps the record of a run; on ranks other than 0 it does nothing.

    Args:
        fence: Whether this attempt may still write, and where.
        leaves: Of the steps before, as the commit holds them.

    Attributes:
        trouble: What went wrong first, if anything.
    """

    def __init__(
        self, fence: Fence, leaves: tuple[AnyLeaf, ...], branch: int, *, writes: bool
    ) -> None:
        self.trouble: GovrayError | OSError | None = None
        self._fence = fence
        self._writes = writes
        self._metrics = MetricLog(fence.folder, fence.attempt)
        self._ahead: WriteAhead | None = None
        if writes:
            with self._noting_trouble():
                self._ahead = WriteAhead(fence.folder / FILE, leaves, branch)

    @property
    def leaves(self) -> Sequence[AnyLeaf]:
        """Of all steps so far."""
        return self._ahead.leaves if self._ahead else []

    def step(self, leaf: Leaf, norms: GradientNorms | None) -> None:
        """A step that was done."""
        if self._ahead:
            with self._noting_trouble():
                self._fence.check()
                self._ahead.append(leaf, norms)

    def measured(self, seen: Seen) -> None:
        """What the monitor found after the step that was recorded last."""
        if self._ahead:
            with self._noting_trouble():
                self._ahead.note(seen.profile)
                for decision in seen.decisions:
                    append(self._folder, Memorized(at=now(), decision=decision))

    def gated(self, gates: Sequence[Gate]) -> None:
        """What the run leaves out from a step on, before that step is done."""
        if self._writes:
            with self._noting_trouble():
                for gate in gates:
                    assert gate.time is not None  # the agreement's
                    append(self._folder, Gated(at=gate.time, gate=gate))

    def reported(self, step: int, metrics: Mapping[str, object], known: Collection[str]) -> None:
        """What the loop says of a step, but for what is ``known`` otherwise.
        A figure that cannot be kept is lost, as a number is; the run goes on."""
        if self._writes:
            for name, value in metrics.items():
                if isinstance(value, Figure):
                    with suppress(OSError, GovrayError, ValueError):
                        figures.keep(
                            self._folder,
                            figures.ReportedFigure.model_validate(
                                {"name": name, "step": step, "figure": value}
                            ),
                        )
            self._metrics.note(step, metrics, known)

    def flush(self) -> None:
        """Write what was reported and waits."""
        if self._writes:
            self._metrics.flush()

    def validated(self, step: int, metrics: Mapping[str, float]) -> None:
        """What validation data gave after a step."""
        values = {name: value for name, value in metrics.items() if math.isfinite(value)}
        if self._writes and values:
            with self._noting_trouble():
                append(
                    self._folder,
                    Reported(
                        at=now(),
                        attempt=self._fence.attempt,
                        step=step,
                        group=GROUP,
                        values=values,
                    ),
                )

    def ended_early(self, event: EndedEarly) -> None:
        """The run ends with the commit that follows."""
        if self._writes:
            with self._noting_trouble():
                append(self._folder, event)

    @property
    def _folder(self) -> Place:
        return self._fence.folder

    @contextmanager
    def _noting_trouble(self) -> Iterator[None]:
        try:
            yield
        except (GovrayError, OSError) as error:
            self.trouble = self.trouble or error
