"""What a framework provides so that `routed_step.RoutedStep` can govern it: seven functions.

`govray.engine.jax.flax_framework` is one. Arrays are the framework's own, and nothing here looks
into them. A framework is made for one model, with its adapters and its optimizer.

The torch engine has a step of its own, which overlaps sums with backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from govray.engine.steps.batch import MicroBatch
from govray.engine.steps.routed import Routed

Arrays = Mapping[str, Any]
"""Parameters, or their gradients, by name."""

Moved = Any
"""New weights and states that stand beside the old ones, not yet in the model."""


class Framework(Protocol):
    """A model, its adapters and its optimizer, and the processes that train it."""

    rank: int
    world_size: int

    def parameters(self) -> Arrays:
        """Every parameter as it is now, adapters' included: ``adapter:<name>/<FQN>``."""

    def differentiate(
        self, part: MicroBatch, routed: Routed, step: int, loss_fn: Callable[..., Any], sums: Arrays
    ) -> tuple[Any, Arrays]:
        """One pass: rows of one route through the model.

        Args:
            routed: Their route. Its weights scale the gradient of each parameter that may learn.
            step: The global step; it keys the rows' dropout with stream and position.
            loss_fn: The user's: unreduced losses. Positions whose target is −100 don't count.
            sums: Gradients of the passes before it.

        Returns:
            Σ of the losses, and ``sums`` with Σ_i w_il ∂ℓ_i/∂θ_l added for the permitted
            parameters. A parameter outside the route has no entry: zeros would be another thing.
        """

    def gather(self, row: Sequence[int]) -> Sequence[Sequence[int]]:
        """Every process's row of int64, by rank. Collective."""

    def average(self, sums: Arrays, counts: Mapping[str, int]) -> Arrays:
        """(1 / N_l) Σ over processes, of one domain. Collective.

        Where something fails on this rank before the sum, it still takes part, with zeros, and
        raises afterwards. Else the others would wait for it. No weight moves then.

        Args:
            sums: This rank's. A name that it lacks counts as zeros.
            counts: N_l by name, above 0, equal on all ranks: exactly these are summed.

        Raises:
            InfrastructureFailed: The sum itself broke off. This ends the process.
        """

    def norm(self, gradients: Arrays) -> float:
        """The Euclidean norm of gradients; it waits for the device."""

    def move(self, group: str, step: int, gradients: Arrays, scale: float) -> Moved:
        """What the optimizer makes of one layer group; the model stays as it is.

        Args:
            group: Its name. Momentum and counts of a group are its own.
            step: The plan's, which schedules read.
            gradients: The group's.
            scale: They are multiplied by it first: 1 unless the domain is clipped.
        """

    def put(self, moved: Sequence[Moved]) -> None:
        """Let the model and the optimizer have what `move` made."""
