"""Whose rows a step no longer takes, and whose by another route only; equal on all ranks."""

from __future__ import annotations

from collections.abc import Mapping

from govray.engine.steps.batch import StepBatch
from govray.errors import Refused


class StepGates:
    """What is gated from the next step on.

    Attributes:
        left_out: Corpus → its name in ``valid_until``, which no longer matters.
        rerouted: Corpus → digest of an alternative to its stream's route.
    """

    def __init__(self) -> None:
        self.left_out: Mapping[str, str] = {}
        self.rerouted: Mapping[str, str] = {}

    @property
    def names(self) -> list[str]:
        """What ranks compare with each other: all of it, in words."""
        return [
            *self.left_out.values(),
            *(f"{corpus} by {route}" for corpus, route in self.rerouted.items()),
        ]

    def require_accepted(self, batch: StepBatch) -> None:
        """See that a batch has no rows of a corpus that is left out."""
        if used := sorted(self.left_out.keys() & batch.corpora.keys()):
            raise Refused(
                f"rows of corpus {used[0]}, whose credential no longer holds",
                where=f"step {batch.step}",
            )
