"""Every gradient of a mixed policy equals a float64 oracle that takes rows one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from govray.engine import step as step_module
from govray.engine.batch import MicroBatch, StepBatch
from govray.engine.collective import bucket_reducer as reducer_module
from govray.engine.collective.routed_model import RoutedModel
from govray.engine.gradients import routing
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, IGNORED
from govray.engine.steps.step_result import StepResult
from govray.governance.policy.route import Route
from tests.support.cases import CORPUS, governed, micro_batch, token_rows
from tests.support.ranks import RankPool
from tests.support.row_oracle import Expected, by_definition, seen_by
from tests.support.violations import zero_instead_of_absent

TOLERANCE = 1e-12
CONTEXT, VOCABULARY, RANK = 5, 11, 2

Tensors = dict[str, Tensor]


class ResidualMLP(nn.Module):
    """Tokens as numbers, one target for a row: no GPT, and losses of shape (rows,)."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(CONTEXT, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(blocks))
        self.final_norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens.to(self.head.weight.dtype) / VOCABULARY)
        for block in self.blocks:
            hidden = hidden + block(hidden).tanh()
        return self.head(self.final_norm(hidden))


@dataclass(frozen=True)
class Stream:
    """One class of rows, and what it may train."""

    route: Route
    rows: Tensors
    cut: int  # rank 0 has the rows before it
    fallback: Route | None = None
    gated: int = 0  # so many rows, the first ones, take the fallback

    @property
    def routes(self) -> tuple[Route, ...]:
        return (self.route,) if self.fallback is None else (self.route, self.fallback)

    def taken(self, index: int) -> Route:
        return self.fallback if self.fallback and index < self.gated else self.route

    def part(self, rank: int) -> tuple[Tensors, int]:
        half = slice(0, self.cut) if rank == 0 else slice(self.cut, None)
        return {name: t[half] for name, t in self.rows.items()}, rank * self.cut


@dataclass(frozen=True)
class Case:
    """One step to take, in full."""

    kind: str
    blocks: int
    streams: tuple[Stream, ...]
    max_rows: int | None
    seed: int
    violation: str | None = None

    @property
    def ranks(self) -> dict[str, int]:
        routes = [route for stream in self.streams for route in stream.routes]
        return {route.adapter: RANK for route in routes if route.adapter is not None}


def build(case: Case) -> tuple[nn.Module, Adapters]:
    """Weights large enough that every gradient is far above rounding."""
    torch.manual_seed(case.seed)
    if case.kind == "mlp":
        model: nn.Module = ResidualMLP(case.blocks)
    else:
        model = GPT(case.blocks, 8, CONTEXT, VOCABULARY, tied=case.kind == "tied gpt", heads=2)
    model.double()
    adapters = Adapters(model, case.ranks, seed=case.seed)
    with torch.no_grad():
        for parameter in (*model.parameters(), *dict(adapters.named_parameters()).values()):
            parameter.normal_(std=0.4)
    return model, adapters


def losses(model: Callable[[Tensor], Tensor], rows: Mapping[str, Tensor]) -> Tensor:
    logits, targets = model(rows["tokens"]), rows["targets"]
    flat = F.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), reduction="none", ignore_index=IGNORED
    )
    return flat.view(targets.shape)


def step_on_a_rank(case: Case) -> tuple[dict[str, Tensor | None], StepResult]:
    """The gradients that the optimizer sees, and the step's result."""
    model, adapters = build(case)
    parameters = {**dict(model.named_parameters()), **dict(adapters.named_parameters())}
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    seen = seen_by(optimizer, parameters)
    parts, corpora, gated, fallbacks = [], [CORPUS], {}, {}
    for index, stream in enumerate(case.streams):
        if stream.fallback:
            corpora.append(f"gated {index}")
            gated[f"gated {index}"] = stream.fallback.digest
            fallbacks[stream.route.digest] = [stream.fallback.digest]
        rows, first = stream.part(dist.get_rank())
        if len(rows["targets"]):
            part = micro_batch(stream.route, rows, first)
            taken = [stream.taken(place) is stream.fallback for place in part.positions]
            names = tuple(f"gated {index}" if each else CORPUS for each in taken)
            parts.append(replace(part, corpora=names))
    uses = {
        corpus: (
            sum(name == corpus for part in parts for name in part.corpora),
            sum(
                count
                for part in parts
                for name, count in zip(part.corpora, part.row_targets, strict=True)
                if name == corpus
            ),
        )
        for corpus in corpora
    }
    batch = StepBatch(0, tuple(parts), {corpus: use for corpus, use in uses.items() if use[0]})
    with pytest.MonkeyPatch.context() as patch:
        if case.violation is not None:
            VIOLATIONS[case.violation](patch)
        run = governed(
            model,
            optimizer,
            [route for stream in case.streams for route in stream.routes],
            adapters=adapters,
            max_rows=case.max_rows,
            alternatives=fallbacks,
            corpora=tuple(corpora),
        )
        run.reroute(gated)
        result = run(batch.rerouted(gated), losses)
    return seen, result


def oracle(case: Case) -> Expected:
    model, adapters = build(case)
    rows = [
        (stream.taken(index), {name: t[index : index + 1] for name, t in stream.rows.items()})
        for stream in case.streams
        for index in range(len(stream.rows["targets"]))
    ]
    return by_definition(model, rows, losses, lambda name: group_of(name, case.kind), adapters)


def group_of(name: str, kind: str) -> str:
    """Spelled out for these models; says the same as inference must."""
    if name.startswith("adapter:"):
        return name.partition("/")[0]
    if kind == "tied gpt" and name == "embedding.tokens.weight":
        return "embedding+head"
    first, second = name.split(".")[:2]
    return f"block.{second}" if first == "blocks" else first


def groups_of(kind: str, blocks: int) -> list[str]:
    tied = kind == "tied gpt"
    ends = ["embedding+head", "final_norm"] if tied else ["final_norm", "head"]
    return ["embedding", *(f"block.{i}" for i in range(blocks)), *ends]


def check(case: Case, pool: RankPool) -> None:
    right = oracle(case)
    for gradients, result in pool.run(step_on_a_rank, case):
        assert gradients.keys() == right.gradients.keys()
        for name, reference in right.gradients.items():
            gradient = gradients[name]
            if reference is None:
                assert gradient is None, f"{name} has a gradient, and should have none"
            else:
                assert gradient is not None, f"{name} has no gradient"
                error = (gradient - reference).norm() / reference.norm()
                assert error <= TOLERANCE, f"{name}: {error.item()}"
        assert dict(result.group_targets) == right.counts
        assert result.loss == pytest.approx(right.loss, rel=1e-12, nan_ok=True)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(["gpt", "tied gpt", "mlp"]))
    blocks = draw(st.integers(1, 3))
    weight = st.sampled_from([1.0, 0.5, 0.3, 0.01])
    streams: dict[str, Stream] = {}
    for index in range(draw(st.integers(1, 3))):
        weights = draw(st.dictionaries(st.sampled_from(groups_of(kind, blocks)), weight))
        adapter = draw(st.sampled_from([None, "left", "right"])) if weights else "left"
        route = Route(weights, adapter, None if adapter is None else RANK)
        count = draw(st.integers(0, 5))
        rows = token_rows(count, CONTEXT, VOCABULARY, draw(st.integers(0, 10**6)), index)
        if kind == "mlp":
            rows["targets"] = rows["targets"][:, 0].contiguous()
        else:
            # The last target always counts: attention at the first position alone has
            # no gradient but rounding, and relative errors of rounding say nothing.
            masked = draw(st.lists(st.integers(0, CONTEXT - 2), max_size=3))
            rows["targets"][: draw(st.integers(0, count)), masked] = IGNORED
        fallback = None
        if draw(st.booleans()):
            kept = draw(st.lists(st.sampled_from([*weights] or ["none"]), unique=True))
            narrower = {group: weights[group] / 2 for group in kept if group in weights}
            fallback = Route(narrower, "own", RANK) if index == 0 or not narrower else None
        streams[route.digest] = Stream(
            route, rows, draw(st.integers(0, count)), fallback, draw(st.integers(0, count))
        )
    return Case(
        kind=kind,
        blocks=blocks,
        streams=tuple(streams.values()),
        max_rows=draw(st.sampled_from([None, 1, 2, 3])),
        seed=draw(st.integers(0, 1000)),
    )


@settings(
    max_examples=15,
    deadline=None,
    # One pool serves all examples on purpose.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(case=cases())
def test_gradients_equal_the_oracle_and_are_absent_where_absent(
    two_ranks: RankPool, case: Case
) -> None:
    check(case, two_ranks)


def mixed(violation: str | None = None) -> Case:
    """Four overlapping streams, unequal ranks, weights, an adapter beside layers and one alone.

    Rows of the first go to a fallback.
    """
    routes = [
        Route({"embedding": 1.0, "block.0": 0.5, "head": 1.0}),
        Route({"block.1": 0.3, "final_norm": 1.0, "head": 0.01}),
        Route({"block.0": 1.0}, "left", RANK),
        Route({}, "right", RANK),
    ]
    streams = []
    gates = [(Route({"head": 0.5}, "own", RANK), 2), (None, 0), (None, 0), (None, 0)]
    for index, (route, count, cut, gate) in enumerate(
        zip(routes, (5, 3, 2, 4), (4, 0, 2, 1), gates, strict=True)
    ):
        rows = token_rows(count, CONTEXT, VOCABULARY, 77, index)
        rows["targets"][: index + 1, :2] = IGNORED
        streams.append(Stream(route, rows, cut, *gate))
    return Case("gpt", 2, tuple(streams), 2, 5, violation)


def test_a_mixed_policy_equals_the_oracle(two_ranks: RankPool) -> None:
    check(mixed(), two_ranks)


# How to lose it. Each replaces one small piece of the engine.


def global_divide(patch: pytest.MonkeyPatch) -> None:
    """Divide every group by all loss targets of the step."""
    divide = step_module.divide
    everyone = mixed()
    total = sum(int((s.rows["targets"] != IGNORED).sum()) for s in everyone.streams)
    patch.setattr(
        step_module,
        "divide",
        lambda domains, sums, counts: divide(
            domains, sums, {name: count and total for name, count in counts.items()}
        ),
    )


def weights_in_the_denominator(patch: pytest.MonkeyPatch) -> None:
    """Count a target of weight w as w targets, rounded up."""

    def weighted(self, micro_batches):
        counts: dict[str, float] = {}
        for each in micro_batches:
            weights = self.streams[each.route].weights
            for group, weight in {self.group_of[n]: w for n, w in weights.items()}.items():
                counts[group] = counts.get(group, 0.0) + weight * each.targets
        return {group: math.ceil(count) for group, count in counts.items()}

    patch.setattr(RoutedModel, "targets", weighted)


def divide_per_rank(patch: pytest.MonkeyPatch) -> None:
    """Divide on each rank by its own counts, and average over the ranks."""
    flat_gradient, divide = reducer_module.flat_gradient, step_module.divide
    counted = RoutedModel.targets
    own: dict[str, int] = {}
    group_of_name: dict[str, str] = {}

    def remember(self, micro_batches):
        own.update(counted(self, micro_batches))
        group_of_name.update(self.group_of)
        return dict(own)

    def averaged(domain, bucket, out):
        for name in bucket:
            if domain.parameters[name].grad is not None:
                domain.parameters[name].grad /= max(own[group_of_name[name]], 1)
        return flat_gradient(domain, bucket)

    patch.setattr(RoutedModel, "targets", remember)
    patch.setattr(reducer_module, "flat_gradient", averaged)
    patch.setattr(
        step_module,
        "divide",
        lambda domains, sums, counts: divide(
            domains, sums, {n: count and dist.get_world_size() for n, count in counts.items()}
        ),
    )


def unscaled(patch: pytest.MonkeyPatch) -> None:
    """Take every weight above 0 for 1."""
    patch.setattr(routing, "_scale", lambda weight: lambda gradient: gradient)


def as_before_the_gate(patch: pytest.MonkeyPatch) -> None:
    """Let gated rows go on training what their stream's route permits."""
    patch.setattr(MicroBatch, "route", property(lambda self: self.stream))


def counted_as_before_the_gate(patch: pytest.MonkeyPatch) -> None:
    """Count gated rows where their stream's route permits."""
    counted = RoutedModel.targets
    patch.setattr(
        RoutedModel,
        "targets",
        lambda self, parts: counted(self, [replace(part, taken=None) for part in parts]),
    )


VIOLATIONS = {
    "as before the gate": as_before_the_gate,
    "counted as before the gate": counted_as_before_the_gate,
    "global divide": global_divide,
    "weights in the denominator": weights_in_the_denominator,
    "divide per rank": divide_per_rank,
    "zero instead of absent": zero_instead_of_absent,
    "unscaled": unscaled,
}
EXPECTED = dict.fromkeys(VIOLATIONS, r"weight: [0-9.e-]+") | {
    "as before the gate": r"adapter:own/.* has no gradient|weight: [0-9.e-]+",
    "zero instead of absent": "embedding.* has a gradient, and should have none",
}


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_the_oracle_sees_each_violation(two_ranks: RankPool, violation: str) -> None:
    case = mixed(violation)
    if violation == "zero instead of absent":
        # Nothing read for the stream that reaches lowest: the embedding has no gradient.
        lowest, *others = case.streams
        none = replace(lowest, rows={name: t[:0] for name, t in lowest.rows.items()}, cut=0)
        case = replace(case, streams=(none, *others))
    with pytest.raises(AssertionError, match=EXPECTED[violation]):
        check(case, two_ranks)
