"""What all methods train on: the model, the policies, and the same rows for each of them.

Invariants: a step's rows depend on the step alone. Equal workloads give equal weights and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from benchmarks.batch import Batch
from benchmarks.cases import SEED, Shape, case_routes, deal, row_counts
from govray.engine.model import gpt
from govray.engine.model.layer_groups import layer_groups
from govray.governance.policy.route import ADAPTER, Route


@dataclass(frozen=True)
class Workload:
    """One case on one rank.

    Attributes:
        case: A name in ``ALL_CASES``.
        shape: Of model and batch.
        rank: This one.
        world_size: Number of ranks.
        device: Where model and rows live.
        dtype: Of the weights.
        autocast: Whether the forward pass runs under bfloat16 autocast.
    """

    case: str
    shape: Shape
    rank: int
    world_size: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    autocast: bool = False

    @cached_property
    def row_counts(self) -> dict[str, int]:
        """Profile → rows over all ranks, in step 0; in other steps too unless adapters take
        turns."""
        return self.counts(0)

    def counts(self, step: int) -> dict[str, int]:
        """Profile → rows over all ranks of a step."""
        return row_counts(self.case, self.shape.rows * self.world_size, step)

    @cached_property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Layer group → FQNs of the model."""
        with torch.device("meta"):
            return layer_groups(self._model())

    @cached_property
    def routes(self) -> dict[str, Route]:
        """Profile → route, for the profiles of the case."""
        return case_routes(self.case, self.groups)

    @cached_property
    def adapters(self) -> tuple[str, ...]:
        """Names of all adapters."""
        return tuple(route.adapter for route in self.routes.values() if route.adapter)

    @property
    def adapter(self) -> str | None:
        """Name of the adapter, if the case has one.

        Raises:
            ValueError: It has several.
        """
        if not self.adapters:
            return None
        (only,) = self.adapters
        return only

    @cached_property
    def group_targets(self) -> dict[str, int]:
        """N_l: loss targets over all ranks, by layer group, the adapter's included."""
        groups = [*self.groups, *([ADAPTER + self.adapter] if self.adapter else [])]
        return {
            group: self.shape.tokens
            * sum(
                count
                for profile, count in self.row_counts.items()
                if group in self.routes[profile].groups
            )
            for group in groups
        }

    def group_of(self, parameter: str) -> str:
        """Layer group of a parameter by its name, ``adapter:<name>/…`` for an adapter's."""
        if parameter.startswith(ADAPTER):
            return parameter.partition("/")[0]
        return self._group_of[parameter]

    def build_model(self) -> gpt.GPT:
        """The model with its initial weights, the same on every call."""
        torch.manual_seed(SEED)
        return self._model().to(self.device, self.dtype)

    def losses(self, model: Callable[[Tensor], Tensor], tensors: Mapping[str, Tensor]) -> Tensor:
        """Unreduced losses, (rows, tokens)."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            return gpt.loss(model, tensors)  # type: ignore[arg-type]

    def batch(self, step: int) -> Batch:
        """This rank's rows of a step."""
        shape = self.shape
        generator = torch.Generator().manual_seed(SEED + step)
        total = shape.rows * self.world_size
        drawn = torch.randint(shape.vocabulary, (total, shape.tokens + 1), generator=generator)
        mine = drawn[self.rank :: self.world_size].to(self.device)
        spans, positions = deal(self.counts(step), self.rank, self.world_size)
        return Batch(step, mine[:, :-1].contiguous(), mine[:, 1:].contiguous(), spans, positions)

    @cached_property
    def _group_of(self) -> dict[str, str]:
        return {name: group for group, names in self.groups.items() for name in names}

    def _model(self) -> gpt.GPT:
        shape = self.shape
        return gpt.GPT(shape.blocks, shape.width, shape.tokens, shape.vocabulary)
