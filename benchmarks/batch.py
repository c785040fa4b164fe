"""A rank's rows of one step, whatever framework their arrays are of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Array = Any
"""Of torch or numpy."""


@dataclass(frozen=True)
class Batch:
    """A rank's rows of one step, in order of profile.

    Attributes:
        step: The global step.
        tokens: Inputs, integers of shape (rows, tokens).
        targets: Labels, of the same shape and dtype.
        spans: Profile → its rows; a profile without rows here has an empty span.
        positions: Profile → index of each of its rows among the step's rows of it.
    """

    step: int
    tokens: Array
    targets: Array
    spans: Mapping[str, slice]
    positions: Mapping[str, tuple[int, ...]]

    def rows(self, profile: str) -> dict[str, Array]:
        """The inputs of the loss for one profile's rows; views."""
        span = self.spans[profile]
        return {"tokens": self.tokens[span], "targets": self.targets[span]}
