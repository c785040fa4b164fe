"""What all methods train on: the model, the policies, and the same rows for each of them.

Invariants:

* Every rank holds equally many rows. A step's rows, in order of profile, go to the ranks in turn.
  So a profile's rows differ by at most one between ranks.
* A step's rows depend on the step alone. Equal workloads give equal weights and rows.
* Shares are rounded once, over all ranks, by largest remainder.
* Where adapters take turns, each that is due has one row, or as many more as there are rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from govray.engine.model import gpt
from govray.engine.model.layer_groups import layer_groups
from govray.errors import UsageError
from govray.governance.policy.route import ADAPTER, Route
from govray.governance.policy.selector import parse_selector

SEED = 17
ADAPTER_NAME = "supplier"
ADAPTER_RANK = 8
LEARNING_RATE = 3e-4

EVERYTHING, UPPER_HALF, REMOVABLE = "everything", "upper_half", "removable"
LOWER_HALF = "lower_half"

CASES: Mapping[str, Mapping[str, float]] = {
    "allow_all": {EVERYTHING: 1.0},
    "mix_50_30_20": {EVERYTHING: 0.5, UPPER_HALF: 0.3, REMOVABLE: 0.2},
    "upper_50": {EVERYTHING: 0.5, UPPER_HALF: 0.5},
    "upper_90": {EVERYTHING: 0.1, UPPER_HALF: 0.9},
}
"""Case → profile → share of the rows."""

MORE_CASES: Mapping[str, Mapping[str, float]] = {
    "two_domains": {LOWER_HALF: 0.5, UPPER_HALF: 0.5},
    "adapters_100": {EVERYTHING: 0.5, REMOVABLE: 0.5},
}
"""Those that run by default on a GPU only."""

ALL_CASES: Mapping[str, Mapping[str, float]] = {**CASES, **MORE_CASES}

TAKING_TURNS: Mapping[str, int] = {"adapters_100": 100}
"""Case → adapters that share the rows of ``REMOVABLE``; each is read every few steps."""


@dataclass(frozen=True)
class Shape:
    """Size of the built-in GPT and of a rank's batch.

    Attributes:
        blocks: Transformer blocks.
        width: Channels of the residual stream.
        tokens: Loss targets of a row.
        rows: Rows of a rank in one step.
        vocabulary: Token ids; 257 is every byte and a separator.
    """

    blocks: int = 8
    width: int = 256
    tokens: int = 128
    rows: int = 16
    vocabulary: int = 257

    def __str__(self) -> str:
        return (
            f"GPT of {self.blocks} blocks, width {self.width}, vocabulary {self.vocabulary}, "
            f"{self.rows} rows of {self.tokens} tokens a rank"
        )


@dataclass(frozen=True)
class Batch:
    """A rank's rows of one step, in order of profile.

    Attributes:
        step: The global step.
        tokens: Inputs, int64 (rows, tokens).
        targets: Labels, int64 (rows, tokens).
        spans: Profile → its rows; a profile without rows here has an empty span.
        positions: Profile → index of each of its rows among the step's rows of it.
    """

    step: int
    tokens: Tensor
    targets: Tensor
    spans: Mapping[str, slice]
    positions: Mapping[str, tuple[int, ...]]

    def rows(self, profile: str) -> dict[str, Tensor]:
        """The inputs of the loss for one profile's rows; views."""
        span = self.spans[profile]
        return {"tokens": self.tokens[span], "targets": self.targets[span]}


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
        counts = share_rows(ALL_CASES[self.case], self.shape.rows * self.world_size)
        if adapters := TAKING_TURNS.get(self.case):
            rows = counts.pop(REMOVABLE)
            for row in range(rows):
                profile = f"{REMOVABLE}_{(step * rows + row) % adapters}"
                counts[profile] = counts.get(profile, 0) + 1
        return counts

    @cached_property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Layer group → FQNs of the model."""
        with torch.device("meta"):
            return layer_groups(self._model())

    @cached_property
    def routes(self) -> dict[str, Route]:
        """Profile → route, for the profiles of the case."""
        profiles = [*ALL_CASES[self.case]]
        if adapters := TAKING_TURNS.get(self.case):
            profiles.remove(REMOVABLE)
            profiles += [f"{REMOVABLE}_{number}" for number in range(adapters)]
        return {profile: route(profile, self.groups) for profile in profiles}

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
        spans, positions = {}, {}
        first, taken = 0, 0
        for profile, count in self.counts(step).items():
            dealt = range(first, first + count)
            own = [i - first for i in dealt if i % self.world_size == self.rank]
            spans[profile] = slice(taken, taken + len(own))
            positions[profile] = tuple(own)
            first, taken = first + count, taken + len(own)
        return Batch(step, mine[:, :-1].contiguous(), mine[:, 1:].contiguous(), spans, positions)

    @cached_property
    def _group_of(self) -> dict[str, str]:
        return {name: group for group, names in self.groups.items() for name in names}

    def _model(self) -> gpt.GPT:
        shape = self.shape
        return gpt.GPT(shape.blocks, shape.width, shape.tokens, shape.vocabulary)


def route(profile: str, groups: Mapping[str, object]) -> Route:
    """The route of a profile."""
    if profile == EVERYTHING:
        return Route(dict.fromkeys(groups, 1.0))
    if profile in (UPPER_HALF, LOWER_HALF):
        upper = parse_selector("blocks[0.5:]").select(groups) | {"final_norm", "head"}
        return Route({g: 1.0 for g in groups if (g in upper) == (profile == UPPER_HALF)})
    return Route({}, ADAPTER_NAME + profile.removeprefix(REMOVABLE), ADAPTER_RANK)


def share_rows(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """Split ``total`` rows by shares that sum to 1, by largest remainder.

    Raises:
        UsageError: There are too few rows to give every profile one.
    """
    counts = {profile: int(share * total + 1e-9) for profile, share in shares.items()}
    by_remainder = sorted(shares, key=lambda profile: counts[profile] - shares[profile] * total)
    for profile in by_remainder[: total - sum(counts.values())]:
        counts[profile] += 1
    if not all(counts.values()):
        raise UsageError(
            f"{total} rows are too few for shares of {', '.join(map(str, shares.values()))}",
            do="Give each rank more rows",
        )
    return counts
