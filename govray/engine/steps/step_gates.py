"""What every framework's step function refuses before it computes, equal on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from govray.engine.steps.batch import StepBatch
from govray.engine.steps.routed import require_planned
from govray.errors import InfrastructureFailed, RankFailed, Refused


class GatedStep:
    """A step function whose corpora can be gated, and that a failure may have ended.
    ``tell``: gets what is gated, in words, for ranks to compare with each other."""

    def __init__(self, tell: Callable[[Sequence[str]], None]) -> None:
        self._tell = tell
        self._left_out: Mapping[str, str] = {}
        self._rerouted: Mapping[str, str] = {}
        self._over: str | None = None

    def require_sound(self) -> None:
        """Refuse to use weights that an earlier failure may have left different on the ranks.
        Raises ``RankFailed``: it has."""
        if self._over is not None:
            raise RankFailed(
                self._over,
                do="Make model, optimizer and step anew, and go on from the last checkpoint",
            )

    def leave_out(self, corpora: Mapping[str, str]) -> None:
        """From the next step on, accept no row of these corpora. Equal on all ranks.
        ``corpora``: corpus → its name in ``valid_until``, which no longer matters."""
        self._left_out = dict(corpora)
        self._tell_gates()

    def reroute(self, corpora: Mapping[str, str]) -> None:
        """From the next step on, accept rows of these corpora by these routes only.

        Args:
            corpora: Corpus → digest of an alternative to its stream's route;
                `StepBatch.rerouted` sends its rows there. Equal on all ranks.
        """
        self._rerouted = dict(corpora)
        self._tell_gates()

    def _tell_gates(self) -> None:
        routes = (f"{corpus} by {route}" for corpus, route in self._rerouted.items())
        self._tell([*self._left_out.values(), *routes])

    def _require_accepted(
        self,
        batch: StepBatch,
        streams: Collection[str],
        corpora: Collection[str],
        alternatives: Mapping[str, Collection[str]],
    ) -> None:
        """See that the batch is loaded, is one of this run, and has no rows that are gated."""
        if batch.error is not None:
            lost = InfrastructureFailed if batch.unreachable else RankFailed
            kind = Refused if batch.refused else lost
            raise kind(f"could not load its batch: {batch.error}")
        if used := sorted(self._left_out.keys() & batch.corpora.keys()):
            raise Refused(
                f"rows of corpus {used[0]}, whose credential no longer holds",
                where=f"step {batch.step}",
            )
        batch.check(streams, corpora, self._rerouted)
        require_planned(batch.micro_batches, alternatives)
