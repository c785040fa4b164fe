"""What a user chooses about a governed step: declared here, and nowhere else.

`GovernedTrainer` takes these as arguments of its own, the order carries them to the workers, and
the step reads them. This module imports no torch, so that the experiment file can take its
defaults from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

from govray.errors import UsageError

FrameworkName = Literal["torch", "jax"]

AggregatorName = Literal["governed", "ddp", "fsdp2"]


class AggregatorKind(NamedTuple):
    """``hosted``: torch sums gradients, inside every backward. ``shards``: ranks share one model,
    and torch casts it."""

    hosted: bool
    shards: bool


AGGREGATORS: Mapping[AggregatorName, AggregatorKind] = {
    "governed": AggregatorKind(hosted=False, shards=False),
    "ddp": AggregatorKind(hosted=True, shards=False),
    "fsdp2": AggregatorKind(hosted=True, shards=True),
}
SHARDING = " or ".join(name for name, kind in AGGREGATORS.items() if kind.shards)
"""For people: the aggregators that share a model."""

Precision = Literal["fp32", "bf16", "bf16-mixed"]
"""``fp32`` leaves the model's parameters as they are, ``bf16`` keeps them in bfloat16. With
``bf16-mixed`` parameters stay, and forward computes in bfloat16."""


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """How a step computes.

    Args:
        framework: What computes gradients. Over JAX all but seed, clip_norm, max_rows and
            collective_timeout_s keep their defaults.
        seed: Of the plan, the initial weights, adapters and dropout.
        clip_norm: Largest gradient norm of a domain; None does not clip.
        max_rows: Rows that go through the model together, more accumulate; None for all of a pass.
        aggregator: Who sums gradients over ranks.
        precision: In which numbers parameters are kept, and forward computes.
        activation_checkpointing: Whether blocks are computed again in backward.
        compile: Whether blocks run as graphs of ``torch.compile``.
        cuda_graphs: Whether passes are captured, and launched as CUDA graphs.
        norms_every: One step of so many is a sample of gradient norms.
        collective_timeout_s: Seconds that ranks wait for each other in a collective.

    Raises:
        UsageError: ``clip_norm`` or ``max_rows`` is not above 0, or ``compile`` or
            ``cuda_graphs`` is joined with what no graph can follow. Or a setting is torch's, and
            the framework is not.
    """

    framework: FrameworkName = "torch"
    seed: int = 17
    clip_norm: float | None = 1.0
    max_rows: int | None = None
    aggregator: AggregatorName = "governed"
    precision: Precision = "fp32"
    activation_checkpointing: bool = False
    compile: bool = False
    cuda_graphs: bool = False
    norms_every: int = 50
    collective_timeout_s: int = 300

    @property
    def shards(self) -> bool:
        """Whether ranks share one model."""
        return AGGREGATORS[self.aggregator].shards

    @property
    def autocast(self) -> bool:
        """Whether losses are computed under torch's autocast to bfloat16.
        A sharded model is cast by torch's policy, which `govray.train.shard` gives it."""
        return self.precision == "bf16-mixed" and not self.shards

    def __post_init__(self) -> None:
        for name, value in (("clip_norm", self.clip_norm), ("max_rows", self.max_rows)):
            if value is not None and not value > 0:
                raise UsageError(f"{name} is {value}", do="Give a number above 0, or None")
        if self.framework == "jax":
            self._refuse_torchs(
                ("aggregator", "precision", "activation_checkpointing", "compile", "cuda_graphs")
            )
        refused = {
            "compile": "each combination of routes in a forward would be another graph",
            "cuda_graphs": "a graph would leave out what torch sums inside every backward",
        }
        for name, problem in refused.items():
            if getattr(self, name) and AGGREGATORS[self.aggregator].hosted:
                raise UsageError(
                    f"with aggregator {self.aggregator} {problem}",
                    where=name,
                    do=f"Use aggregator: governed, or leave {name} out",
                )
        if self.compile and self.activation_checkpointing:
            raise UsageError(
                "a compiled block chooses by itself what it computes again",
                where="compile",
                do="Leave out compile or activation_checkpointing",
            )
        for name in ("compile", "activation_checkpointing"):
            if self.cuda_graphs and getattr(self, name):
                raise UsageError(
                    f"{name} beside it is not built",
                    where="cuda_graphs",
                    do=f"Leave out cuda_graphs or {name}",
                )

    def _refuse_torchs(self, names: Sequence[str]) -> None:
        """Refuse settings that mean something under torch alone, unless they are the defaults."""
        defaults = {each.name: each.default for each in fields(self)}
        for name in names:
            if (given := getattr(self, name)) != defaults[name]:
                raise UsageError(
                    f"{name} is {given}, which is built over torch alone",
                    where="framework: jax",
                    do=f"Leave {name} out",
                )
