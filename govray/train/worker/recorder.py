"""What rank 0 writes down of a run as it goes: the ledger's leaves, events and the loop's metrics.

What goes wrong here is carried into the next agreement, so that all ranks stop together.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType

from govray.engine.steps.step_result import StepResult
from govray.errors import GovrayError, Refused
from govray.governance.policy.route import Route
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.entropy_profile import EntropyProfile, MonitorDecision
from govray.governance.record.gates import Gate
from govray.governance.record.ledger import (
    MAX_SQUARED_NORM,
    AnyLeaf,
    CorpusUse,
    GradientNorms,
    Leaf,
    MeasuredPass,
)
from govray.storage.place import Place
from govray.train.experiment.sections import GROUP
from govray.train.run_folder import figures
from govray.train.run_folder.clock import now
from govray.train.run_folder.events import EndedEarly, Gated, Memorized, Reported, append
from govray.train.run_folder.figures import Figure
from govray.train.run_folder.ledger_wal import FILE, WriteAhead
from govray.train.run_folder.loop_metrics import MetricLog
from govray.train.run_folder.run_lock import Fence


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

    def measured(self, profile: EntropyProfile) -> None:
        """What the monitor found after the step that was recorded last."""
        if self._ahead:
            with self._noting_trouble():
                self._ahead.note(profile)

    def decided(self, decisions: Sequence[MonitorDecision], *, last: bool) -> None:
        """What follows from a profile. ``last``: whether no step comes after its own."""
        if self._ahead:
            with self._noting_trouble():
                for made in decisions:
                    decision = made.at_the_end() if last else made
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


def step_leaf(
    result: StepResult,
    plan: BatchPlan,
    *,
    policy: str,
    branch: int = 0,
    rerouted: Mapping[str, str] = MappingProxyType({}),
) -> Leaf:
    """The leaf of one step. Engines that agree on the counts write the same bytes.
    ``rerouted``: corpus → digest of the route that a gate or a later phase sent its rows to."""
    return Leaf(
        branch=branch,
        step=result.step,
        world_size=result.world_size,
        policy=policy,
        plan=plan.digest,
        streams={
            stream: (span.start, span.stop) for stream, span in plan.positions(result.step).items()
        },
        corpora={
            corpus: CorpusUse(rows=rows, targets=targets, route=rerouted.get(corpus))
            for corpus, (rows, targets) in result.corpus_counts.items()
            if rows
        },
    )


# From what the engine measured to the gradient norms that the ledger holds.
#
# A share is a ratio over all corpora. So it means something only if every corpus that updated a
# layer group was measured in it. If one was not, or a number is not finite or too large, the
# sample leaves out the whole group. A failed measurement never stops a run, but a gradient that
# the route forbids does.


def gradient_norms(
    leaf: Leaf,
    pieces: Collection[tuple[int, str, Mapping[str, int]]],
    squares: Mapping[tuple[str, str], float],
    routes: Mapping[str, Route],
) -> GradientNorms | None:
    """The leaf that follows ``leaf``, or None if no group was measured whole.

    Args:
        leaf: Of the step that was sampled.
        pieces: One (rank, stream id, {corpus: rows}) for each stream of each pass.
        squares: (Corpus, layer group) to the sum over its pieces of squared gradient norms.
            Gradients are divided by the group's count.
        routes: Stream id to route; and the routes of later phases and fallbacks, which the leaf
            names, by digest.

    Raises:
        Refused: A norm of a corpus that is in no piece, or of a group that its route forbids.
    """
    taken = {corpus: use.route for corpus, use in leaf.corpora.items()}
    groups = {
        corpus: routes[taken.get(corpus) or stream].groups
        for _, stream, corpora in pieces
        for corpus in corpora
    }
    for corpus, group in squares:
        if group not in groups.get(corpus, ()):
            raise Refused(
                f"a gradient of corpus {corpus} in {group}, which its route forbids",
                where=f"step {leaf.step}",
                do="The engine is at fault: stop using it, and report this",
            )
    incomplete = {
        group
        for corpus, permitted in groups.items()
        for group in permitted
        # Also false for NaN.
        if not 0 <= squares.get((corpus, group), -1.0) <= MAX_SQUARED_NORM
    }
    measured = {
        corpus: {group: squares[corpus, group] for group in permitted if group not in incomplete}
        for corpus, permitted in groups.items()
    }
    squared_norms = {corpus: norms for corpus, norms in measured.items() if norms}
    if not squared_norms:
        return None
    return GradientNorms(
        branch=leaf.branch,
        step=leaf.step,
        passes=tuple(
            MeasuredPass(rank=rank, stream=stream, corpora=dict(corpora))
            for rank, stream, corpora in sorted(pieces, key=lambda piece: piece[:2])
        ),
        squared_norms=squared_norms,
    )
