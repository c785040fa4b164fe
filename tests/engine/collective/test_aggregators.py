"""DDP and FSDP2 give what the governed reducer gives, and stop as it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from govray.engine.collective.fsdp2 import FSDP2
from govray.engine.collective.gradient_clip import GradientClip
from govray.engine.collective.sharded_row_trial import ShardedRowTrial
from govray.engine.gradients.precision import cast_parameters
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.steps.step_result import StepResult
from govray.errors import RankFailed, Refused, UsageError
from govray.governance.policy.route import Route
from govray.train.checkpoint.tensor_shards import shard
from tests.support.cases import governed, micro_batch, step_batch, token_rows
from tests.support.explicit_sum import sum_over_ranks
from tests.support.ranks import RankPool
from tests.support.table import each_row

BLOCKS, WIDTH, CONTEXT, VOCABULARY, RANK = 3, 8, 5, 11, 2
ALL = Route(
    dict.fromkeys(["embedding", "block.0", "block.1", "block.2", "final_norm", "head"], 1.0)
)
UPPER = Route(dict.fromkeys(["block.2", "final_norm", "head"], 1.0))
MIDDLE = Route({"block.1": 0.5, "head": 1.0})
LINKED = Route({"block.0": 1.0}, "linked", RANK)
NOTES = Route({}, "notes", RANK)
ROUTES = [ALL, UPPER, MIDDLE, LINKED, NOTES]
HOSTS = ["ddp", "fsdp2"]

Counts = Mapping[str, tuple[int, ...]]
"""Route name → rows, by rank."""

NAMES = {"all": ALL, "upper": UPPER, "middle": MIDDLE, "linked": LINKED, "notes": NOTES}

MIXED: Counts = {
    "all": (2, 1),
    "upper": (1, 3),
    "middle": (0, 2),
    "linked": (1, 0),
    "notes": (2, 1),
}
UNEVEN: Counts = {"upper": (2, 0), "middle": (0, 3), "notes": (0, 2)}
ONE_SIDED: Counts = {"all": (5, 0), "notes": (1, 0)}
NONE: Counts = {}


class Experts(nn.Module):
    """What no Function covers: a tensor of its own, and layers that see tokens without rows.

    An expert may be without tokens, and a forward skips the last one always.
    """

    def __init__(self, width: int, _: float = 0.0) -> None:
        super().__init__()
        self.router = nn.Parameter(torch.empty(2, width))
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.act = nn.ReLU(inplace=True)

    def forward(self, hidden: Tensor) -> Tensor:
        flat = hidden.flatten(0, 1)
        share, chosen = (flat @ self.router.T).softmax(-1).max(-1)
        total = torch.zeros_like(flat)
        for place in range(2):
            at = (chosen == place).nonzero()[:, 0]
            found = self.act(self.experts[place](flat[at]))
            total = total.index_add(0, at, found * share[at, None])
        return total.view_as(hidden)


class InPlace(nn.Module):
    """Layers that a Function covers, whose outputs are written in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, hidden: Tensor) -> Tensor:
        found = self.down(self.act(self.up(hidden)))
        found += hidden
        return found


@dataclass(frozen=True)
class Plan:
    """A few steps to take."""

    aggregator: str
    steps: tuple[Counts, ...]
    max_rows: int | None = None
    replicate: int = 1
    dtype: torch.dtype = torch.float32
    routes: tuple[Route, ...] = tuple(ROUTES)
    mlp: Callable[[int], nn.Module] | None = None
    clip_norm: float | None = 0.05
    dropout: float = 0.0
    reference: bool = False
    violation: str | None = None
    loss: Any = loss
    settings: Mapping[str, Any] = field(default_factory=dict)


def build(plan: Plan) -> tuple[nn.Module, Adapters, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = GPT(BLOCKS, WIDTH, CONTEXT, VOCABULARY, heads=2, dropout=plan.dropout)
    for block in model.blocks if plan.mlp else ():
        block.mlp = plan.mlp(WIDTH)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.to(plan.dtype)
    precision = plan.settings.get("precision")
    if precision == "bf16":
        cast_parameters(model)
    if plan.aggregator == "fsdp2":
        if precision == "bf16-mixed" or plan.replicate > 1:
            shard(model, mixed=precision == "bf16-mixed", replicate=plan.replicate)
        else:
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
    names = {r.adapter: RANK for r in plan.routes if r.adapter}
    adapters = Adapters(model, names, seed=0)
    parameters = [*model.parameters(), *(p for _, p in adapters.named_parameters())]
    return model, adapters, torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def whole(tensor: Tensor) -> Tensor:
    value = tensor.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value.clone()


def train(plan: Plan) -> tuple[dict[str, Tensor], list[StepResult]]:
    """Weights after all steps, and what every step said."""
    rank = dist.get_rank() % 2
    first = dist.get_rank() // 2
    model, adapters, optimizer = build(plan)
    with pytest.MonkeyPatch.context() as patch:
        if plan.violation is not None:
            VIOLATIONS[plan.violation](patch)
        run = governed(
            model,
            optimizer,
            plan.routes,
            adapters=adapters,
            max_rows=plan.max_rows,
            clip_norm=plan.clip_norm,
            aggregator=plan.aggregator,
            tries_rows=not plan.reference,
            **plan.settings,
        )
        if plan.reference:
            explicit(run)
        results = []
        for step, counts in enumerate(plan.steps):
            batch = [
                micro_batch(
                    NAMES[name],
                    token_rows(rows[rank], CONTEXT, VOCABULARY, step, index, rank, first),
                    10 * dist.get_rank(),
                )
                for index, (name, rows) in enumerate(counts.items())
                if rows[rank]
            ]
            results.append(run(step_batch(step, batch), plan.loss))
    parameters = {**dict(model.named_parameters()), **dict(adapters.named_parameters())}
    return {name: whole(p) for name, p in parameters.items()}, results


def explicit(run: Any) -> None:
    """Let the governed step sum by the reference, after the last backward."""
    aggregator = run._aggregator
    kept: dict[str, Any] = {}
    begin = aggregator.begin

    def remember(counts, meet):
        kept["counts"] = counts
        begin(counts, meet)

    aggregator.begin = remember
    aggregator.send_rest = lambda: None
    aggregator.sums = lambda: sum_over_ranks(run.routed.domains, kept["counts"]())
    aggregator._reducer._send_ready = lambda: None


def assert_close(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        # AdamW amplifies rounding where an exact gradient is near zero: see docs/training-modes.md.
        error = (ours[name] - expected).norm() / expected.norm().clamp(min=1e-3)
        assert error <= 5e-5, f"{name}: {error.item():.1e}"


def assert_same_results(ours: list[StepResult], theirs: list[StepResult]) -> None:
    for our, their in zip(ours, theirs, strict=True):
        assert our.group_targets == their.group_targets
        assert our.loss == pytest.approx(their.loss, rel=1e-5, nan_ok=True)
        assert our.grad_norms == pytest.approx(their.grad_norms, rel=1e-4)


STEPS = (MIXED, UNEVEN, ONE_SIDED, NONE, MIXED)


@pytest.mark.parametrize(("host", "max_rows"), [("ddp", 2), ("fsdp2", None)])
def test_it_equals_the_explicit_reference(
    two_ranks: RankPool, host: str, max_rows: int | None
) -> None:
    plan = Plan(host, STEPS, max_rows=max_rows, dropout=0.1)
    explicitly = replace(plan, aggregator="governed", reference=True)
    expected, stated = two_ranks.run(train, explicitly)[0]
    for weights, results in two_ranks.run(train, plan):
        assert_close(weights, expected)
        assert_same_results(results, stated)


def test_it_equals_the_explicit_reference_on_four_ranks(four_ranks: RankPool) -> None:
    """FSDP2 is compared on four ranks beside its copies, below."""
    plan = Plan("ddp", (MIXED, UNEVEN, NONE), max_rows=2)
    explicitly = replace(plan, aggregator="governed", reference=True)
    expected, _ = four_ranks.run(train, explicitly)[0]
    for weights, _ in four_ranks.run(train, plan):
        assert_close(weights, expected)


class Centred(nn.Module):
    """A layer that subtracts its mean over rows; or what draws before it."""

    def __init__(self, width: int, dropout: float = 0.0, share: float = 0.1) -> None:
        super().__init__()
        self.up, self.dropout, self.share = nn.Linear(width, width), dropout, share

    def forward(self, hidden: Tensor) -> Tensor:
        found = F.dropout(self.up(hidden), self.dropout)
        return found - self.share * found.mean(0)


MIXING = Plan("fsdp2", ({"all": (4, 3)},), routes=(ALL,), mlp=Centred)


def shared_gradient(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
    """What rows share has no value, only a gradient."""
    logits = model(tensors["tokens"])
    losses = F.cross_entropy(logits.flatten(0, 1), tensors["targets"].flatten(), reduction="none")
    shared = (logits.mean() * logits).mean()
    return losses.view_as(tensors["targets"]) + shared - shared.detach()


@each_row(
    ("plan", "says"),
    [
        (MIXING, "a row's loss differs"),
        (replace(MIXING, steps=({"all": (0, 2)},)), "a row's loss differs"),
        (replace(MIXING, mlp=partial(Centred, dropout=0.1), max_rows=2), "a row's loss differs"),
        (replace(MIXING, mlp=None, loss=shared_gradient), "a row's gradient of "),
    ],
)
def test_sharded_rows_that_learn_from_each_other_are_refused(
    two_ranks: RankPool, plan: Plan, says: str
) -> None:
    outcomes = two_ranks.outcomes(train, plan)
    assert all(isinstance(outcome, Refused) for outcome in outcomes), outcomes
    assert len({str(outcome) for outcome in outcomes}) == 1
    assert says in str(outcomes[0])
    assert "with the rows beside it, so rows would learn from each other" in str(outcomes[0])


def test_without_the_trial_they_would_train(two_ranks: RankPool) -> None:
    """The negative control."""
    two_ranks.run(train, replace(MIXING, violation="untried"))


@each_row(
    ("plan",),
    [
        (Plan("fsdp2", (MIXED, UNEVEN, NONE), dropout=0.1),),
        (Plan("fsdp2", (ONE_SIDED,), max_rows=2, mlp=Experts),),
        (replace(MIXING, mlp=partial(Centred, dropout=0.1, share=0.0)),),
    ],
)
def test_the_trial_of_sharded_rows_changes_no_bit(two_ranks: RankPool, plan: Plan) -> None:
    """Ranks have fewer rows than it takes, or none."""
    expected, stated = two_ranks.run(train, replace(plan, violation="untried"))[0]
    weights, results = two_ranks.run(train, plan)[0]
    assert [name for name in expected if not torch.equal(weights[name], expected[name])] == []
    assert [each.grad_norms for each in results] == [each.grad_norms for each in stated]


EXPERTS = Plan("ddp", STEPS, max_rows=2, dtype=torch.float64, mlp=Experts)


def assert_learned(pool: RankPool, plan: Plan) -> None:
    explicitly = replace(plan, aggregator="governed", reference=True)
    expected, stated = pool.run(train, explicitly)[0]
    for weights, results in pool.run(train, plan):
        assert_same_results(results, stated)
        for name, tensor in expected.items():
            assert (weights[name] - tensor).norm() <= 1e-12 * tensor.norm(), name


class Flat(nn.Module):
    """Layers that a Function covers, and that see tokens without rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(hidden.flatten(0, 1)))).view_as(hidden)


@pytest.mark.parametrize("mlp", [Experts, InPlace, Flat])
@pytest.mark.parametrize("host", HOSTS)
def test_whatever_a_model_does_with_its_layers_it_trains_under_any_routes(
    two_ranks: RankPool, host: str, mlp: type[nn.Module]
) -> None:
    """No Function covers experts. A pass has rows of one route then."""
    assert_learned(two_ranks, replace(EXPERTS, aggregator=host, mlp=mlp))


@pytest.mark.story
@pytest.mark.parametrize("host", HOSTS)
def test_it_does_so_on_four_ranks_without_interference(four_ranks: RankPool, host: str) -> None:
    plan = replace(EXPERTS, aggregator=host)
    assert_learned(four_ranks, plan)
    moved, left = interference(four_ranks, replace(plan, dtype=torch.float32))
    assert moved
    assert left == []
    # The control: one clip over all domains.
    assert interference(four_ranks, replace(plan, violation="global clip"))[1]


def test_gradients_that_nobody_weighs_would_let_every_row_in(two_ranks: RankPool) -> None:
    """The negative control: FSDP2's parameters take what arrives."""
    with pytest.raises(AssertionError):
        assert_learned(two_ranks, replace(EXPERTS, aggregator="fsdp2", violation="unweighed"))


@pytest.mark.parametrize("host", HOSTS)
def test_allowing_everything_it_is_plain_training_bit_for_bit(
    two_ranks: RankPool, host: str
) -> None:
    plan = Plan(host, ({"all": (2, 3)}, {"all": (4, 1)}), routes=(ALL,), mlp=Experts)
    plan = replace(plan, clip_norm=None)
    expected = two_ranks.run(plainly, plan)[0]
    for weights, _ in two_ranks.run(train, plan):
        assert all(torch.equal(weights[name], expected[name]) for name in expected)


def plainly(plan: Plan) -> dict[str, Tensor]:
    """Weights after the same steps, by torch alone: local sums, one sum over ranks, a division."""
    rank = dist.get_rank()
    model, _, optimizer = build(replace(plan, aggregator="none"))
    for step, counts in enumerate(plan.steps):
        batch = token_rows(counts["all"][rank], CONTEXT, VOCABULARY, step, 0, rank, 0)
        optimizer.zero_grad()
        plan.loss(model, batch).sum().backward()
        for parameter in model.parameters():
            if parameter.grad is None:  # an expert that no token here went to
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= sum(counts["all"]) * CONTEXT
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


HSDP = Plan("fsdp2", (MIXED, UNEVEN), replicate=2, max_rows=2, dropout=0.1)


@pytest.mark.story
def test_hsdp_shards_within_and_replicates_between(four_ranks: RankPool) -> None:
    plan = replace(HSDP, dtype=torch.float64, dropout=0.0)
    reference = replace(plan, aggregator="governed", reference=True)
    expected, stated = four_ranks.run(train, reference)[0]
    one_copy, _ = four_ranks.run(train, replace(plan, replicate=1))[0]
    for weights, results in four_ranks.run(train, plan):
        assert_close(weights, expected)
        assert_same_results(results, stated)
        for name, tensor in expected.items():
            # Sums over copies have another order than those over all ranks, so not the same bits.
            most = tensor.norm() * 1e-12
            assert (weights[name] - tensor).norm() <= most, name
            assert (weights[name] - one_copy[name]).norm() <= most, name


@pytest.mark.story
def test_an_adapter_only_class_leaves_no_bit_of_any_copy_changed(four_ranks: RankPool) -> None:
    moved, left = interference(four_ranks, HSDP)
    assert moved
    assert left == []
    # The control: one clip over all domains.
    assert interference(four_ranks, replace(HSDP, violation="global clip"))[1]


@pytest.mark.parametrize("host", HOSTS)
def test_the_first_step_may_leave_a_rank_without_any_row(two_ranks: RankPool, host: str) -> None:
    plan = Plan(host, (ONE_SIDED, MIXED))
    expected, _ = two_ranks.run(train, replace(plan, aggregator="governed"))[0]
    for weights, _ in two_ranks.run(train, plan):
        assert_close(weights, expected)


def without_notes(counts: Counts) -> Counts:
    return {name: rows for name, rows in counts.items() if name != "notes"}


@pytest.mark.parametrize(("host", "max_rows"), [("ddp", None), ("fsdp2", 2)])
def test_an_adapter_only_class_leaves_no_bit_of_the_base_changed(
    two_ranks: RankPool, host: str, max_rows: int | None
) -> None:
    moved, left = interference(two_ranks, Plan(host, STEPS, max_rows, dropout=0.1))
    assert moved
    assert left == []


@pytest.mark.story
@pytest.mark.parametrize("host", HOSTS)
def test_it_does_so_on_four_ranks(four_ranks: RankPool, host: str) -> None:
    assert interference(four_ranks, Plan(host, (MIXED, UNEVEN, MIXED)))[1] == []


@pytest.mark.parametrize("host", HOSTS)
def test_a_global_clip_would_change_the_base(two_ranks: RankPool, host: str) -> None:
    """The negative control: one clip over all domains."""
    _, changed = interference(two_ranks, Plan(host, STEPS, violation="global clip"))
    assert changed


def interference(pool: RankPool, plan: Plan) -> tuple[bool, list[str]]:
    """Whether the adapter moved with its class; and what else differs."""
    less = replace(plan, steps=tuple(without_notes(counts) for counts in plan.steps))
    with_it, _ = pool.run(train, plan)[0]
    without, _ = pool.run(train, less)[0]
    changed = [name for name in with_it if not torch.equal(with_it[name], without[name])]
    own = [name for name in changed if name.startswith("adapter:notes/")]
    return bool(own), [name for name in changed if name not in own]


def global_clip(patch: pytest.MonkeyPatch) -> None:
    norms = GradientClip.norms

    def together(self, live):
        each = norms(self, live)
        total = sum(norm.square() for norm in each.values()) ** 0.5
        return dict.fromkeys(each, total)

    patch.setattr(GradientClip, "norms", together)


def unweighed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FSDP2, "_arrived", lambda self, name, gradient: gradient)


def untried(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardedRowTrial, "__call__", lambda *_: None)


VIOLATIONS = {"global clip": global_clip, "unweighed": unweighed, "untried": untried}


def infinite(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
    losses = loss(model, tensors)
    return losses * float("nan") if dist.get_rank() == 1 else losses


@pytest.mark.parametrize("host", HOSTS)
def test_a_gradient_that_is_not_finite_stops_all_with_one_error(
    two_ranks: RankPool, host: str
) -> None:
    """What a rank raises: tests/engine/test_rank_failures.py."""
    outcomes = two_ranks.outcomes(train, Plan(host, (MIXED,), max_rows=3, loss=infinite))
    for outcome in outcomes:
        assert isinstance(outcome, RankFailed)
        assert "is not finite" in str(outcome)
        assert "rank 1, step 0" in (outcome.where or "")
    assert len({str(outcome) for outcome in outcomes}) == 1


PARTED = (Route({"block.0": 1.0}), Route({"head": 1.0}))


def make(plan: Plan) -> None:
    """A step over a model that is not sharded."""
    model, adapters, optimizer = build(replace(plan, aggregator="none"))
    governed(model, optimizer, plan.routes, adapters=adapters, aggregator=plan.aggregator)


@pytest.mark.parametrize(
    ("plan", "kind", "says"),
    [
        (Plan("ddp", (), routes=PARTED), Refused, "2 domains (block.0, head)"),
        (Plan("fsdp2", ()), UsageError, "is not sharded"),
    ],
)
def test_a_host_refuses_what_it_cannot_hold(two_ranks: RankPool, plan, kind, says: str) -> None:
    for error in two_ranks.outcomes(make, plan):
        assert isinstance(error, kind)
        assert says in str(error)


def test_fsdp2_serves_two_domains_of_the_base_model(two_ranks: RankPool) -> None:
    plan = Plan("fsdp2", ({"lower": (1, 0), "top": (2, 3)},) * 2, routes=PARTED)
    expected, _ = two_ranks.run(train, replace(plan, aggregator="governed"))[0]
    for weights, _ in two_ranks.run(train, plan):
        assert_close(weights, expected)


NAMES |= {"lower": PARTED[0], "top": PARTED[1]}


@pytest.mark.parametrize("host", HOSTS)
def test_what_no_route_reaches_does_not_even_decay(two_ranks: RankPool, host: str) -> None:
    plan = Plan(host, ({"upper": (1, 2), "middle": (2, 0)},) * 2, routes=(UPPER, MIDDLE))
    (weights, _), _ = two_ranks.run(train, plan)
    before = dict(build(replace(plan, aggregator="none"))[0].named_parameters())
    for name, parameter in before.items():
        reached = name.startswith(("blocks.1", "blocks.2", "final_norm", "head"))
        assert torch.equal(weights[name], parameter) != reached, name
