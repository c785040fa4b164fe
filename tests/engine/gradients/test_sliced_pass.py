"""Sliced passes in a governed step: exact for any policy, or not used."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from govray.engine.gradients import pass_check
from govray.engine.gradients import pass_planner as planner_module
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.step import GovernedStep
from govray.governance.policy.route import Route
from tests.support.cases import allow_all, governed, micro_batch, step_batch, token_rows
from tests.support.row_oracle import Gradients, by_definition, seen_by
from tests.support.table import each_row

BLOCKS, WIDTH, CONTEXT, VOCABULARY, RANK = 3, 8, 5, 11, 2
GROUPS = ["embedding", "block.0", "block.1", "block.2", "final_norm", "head"]


@pytest.fixture(autouse=True)
def sliced_wherever_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the estimate says of these small models."""
    monkeypatch.setattr(planner_module, "slicing_pays", lambda *_: True)


def fresh(kind: type[nn.Module] = GPT, **options: object) -> nn.Module:
    torch.manual_seed(3)
    model = kind(BLOCKS, WIDTH, CONTEXT, VOCABULARY, heads=2, **options).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


def prepare(
    model: nn.Module, routes: list[Route], **settings: object
) -> tuple[GovernedStep, Gradients]:
    """A step, and where it leaves the gradients that the optimizer saw."""
    adapters = Adapters(model, {r.adapter: RANK for r in routes if r.adapter}, seed=0)
    own = dict(adapters.named_parameters())
    with torch.no_grad():
        for index, parameter in enumerate(own.values()):
            parameter.normal_(std=0.4, generator=torch.Generator().manual_seed(index))
    parameters = {**dict(model.named_parameters()), **own}
    optimizer = torch.optim.SGD(parameters.values(), lr=0.01)
    seen = seen_by(optimizer, parameters)
    return governed(model, optimizer, routes, adapters=adapters, **settings), seen


def methods(run: GovernedStep) -> list[str]:
    """What the passes that really ran were, filled in as they run."""
    ran: list[str] = []
    forward = run.accumulation.forward.__class__.__call__

    class Noting(type(run.accumulation.forward)):
        def __call__(self, each, *rest):
            ran.append(each.method)
            return forward(self, each, *rest)

    run.accumulation.forward.__class__ = Noting
    return ran


def take(
    routes: list[Route],
    counts: list[int],
    *,
    kind: type[nn.Module] = GPT,
    slicing: bool = True,
    loss_fn=loss,
    steps: int = 1,
    max_rows: int | None = None,
    **options: object,
) -> tuple[Gradients, GovernedStep, list[str]]:
    model = fresh(kind, **options)
    run, seen = prepare(model, routes, max_rows=max_rows)
    if not slicing:
        run.accumulation.planner.unsliced = "asked for"
    ran = methods(run)
    for step in range(steps):
        batch = [
            micro_batch(route, token_rows(count, CONTEXT, VOCABULARY, step, index))
            for index, (route, count) in enumerate(zip(routes, counts, strict=True))
            if count
        ]
        run(step_batch(step, batch), loss_fn)
    return seen, run, ran


def assert_equal(ours: Gradients, theirs: Gradients) -> None:
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        gradient = ours[name]
        if expected is None:
            assert gradient is None, f"{name} has a gradient, and should have none"
        else:
            assert gradient is not None, f"{name} has no gradient"
            assert (gradient - expected).norm() <= 1e-12 * expected.norm(), name


def row_by_row(routes: list[Route], counts: list[int], **options: object) -> Gradients:
    rows = [
        (route, token_rows(count, CONTEXT, VOCABULARY, 0, index))
        for index, (route, count) in enumerate(zip(routes, counts, strict=True))
    ]
    return by_definition(fresh(**options), rows, loss, group_of).gradients


def group_of(name: str) -> str:
    first, second = name.split(".")[:2]
    return f"block.{second}" if first == "blocks" else first


weights = st.dictionaries(st.sampled_from(GROUPS), st.sampled_from([1.0, 0.5, 0.01]), min_size=1)


@settings(max_examples=25)
@given(
    drawn=st.lists(st.tuples(weights, st.integers(1, 4)), min_size=2, max_size=5),
    max_rows=st.none() | st.integers(2, 5),
)
def test_it_equals_the_oracle_for_any_policy(
    drawn: list[tuple[dict[str, float], int]], max_rows: int | None
) -> None:
    streams = {Route(given).digest: (Route(given), count) for given, count in drawn}
    routes = [route for route, _ in streams.values()]
    counts = [count for _, count in streams.values()]
    ours, _, _ = take(routes, counts, max_rows=max_rows)
    assert_equal(ours, row_by_row(routes, counts))


MIDDLE = [
    Route({"block.1": 1.0}),
    Route({"block.0": 0.5, "block.1": 1.0, "head": 1.0}),
    Route({"embedding": 1.0, "block.1": 1.0, "final_norm": 0.3}),
]


@each_row("separator", [None, 3])
def test_streams_of_one_domain_share_a_pass(separator: int | None) -> None:
    ours, run, ran = take(MIDDLE, [2, 3, 1], separator=separator)
    assert ran.count("sliced") == 2  # the trial, and the pass
    assert run.accumulation.planner.unsliced is None
    assert_equal(ours, row_by_row(MIDDLE, [2, 3, 1], separator=separator))


def test_rows_that_read_one_adapter_share_a_pass() -> None:
    routes = [Route(dict(each.weights), "notes", RANK) for each in MIDDLE]
    ours, run, ran = take([*routes, MIDDLE[0]], [2, 3, 1, 2])
    assert "sliced" in ran
    assert run.accumulation.planner.unsliced is None
    theirs, _, _ = take([*routes, MIDDLE[0]], [2, 3, 1, 2], slicing=False)
    assert_equal(ours, theirs)


def test_with_everything_allowed_it_is_plain_training_bit_for_bit() -> None:
    """A step that must slice, over one stream: the layers' own kernels run."""
    rows = token_rows(4, CONTEXT, VOCABULARY, 9)
    model = fresh().float()
    run, seen = prepare(model, [allow_all(model)])
    run.accumulation.planner._hosted = frozenset({0})
    ran = methods(run)
    run(step_batch(0, [micro_batch(allow_all(model), rows)]), loss)
    assert ran[-1] == "sliced"
    plain = fresh().float()
    loss(plain, rows).sum().backward()
    for name, parameter in plain.named_parameters():
        assert torch.equal(seen[name], parameter.grad / (4 * CONTEXT)), name


class Pixels(GPT):
    """Looks positions up once for all rows, as transformers' GPT-2 does."""

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])[None]
        hidden = self.embedding.tokens(tokens) + self.embedding.positions(places)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.final_norm(hidden))


class Upside(GPT):
    """Runs its blocks from the last to the first."""

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in reversed(self.blocks):
            hidden = block(hidden)
        return self.head(self.final_norm(hidden))


class Read(GPT):
    """Reads a tensor instead of calling its layer."""

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = F.linear(block(hidden), self.blocks[0].attention.out.weight)
        return self.head(self.final_norm(hidden))


TOUCHING = [
    Route({"block.0": 1.0}),
    Route({"block.1": 1.0, "block.2": 0.5, "head": 1.0}),
    Route({"block.0": 1.0, "head": 0.5}),
    MIDDLE[2],
]
ODD = {
    Pixels: "in a pass of",
    Upside: "gradients differ by",
    Read: "outside its layer's forward",
}


@pytest.mark.parametrize("kind", ODD)
def test_a_model_that_does_not_lend_itself_is_routed_stream_by_stream(
    kind: type[nn.Module],
) -> None:
    routes = TOUCHING
    ours, run, ran = take(routes, [2, 3, 2, 1], kind=kind, steps=2)
    assert ODD[kind] in run.accumulation.planner.unsliced
    assert ran.count("sliced") == 1  # the trial
    theirs, _, _ = take(routes, [2, 3, 2, 1], kind=kind, steps=2, slicing=False)
    assert_equal(ours, theirs)


def test_without_the_trial_a_wrong_order_would_lose_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The negative control: the same model, with the trial switched off."""
    monkeypatch.setattr(pass_check, "try_pass", lambda *_: pass_check.PassCheck(True))
    routes = TOUCHING
    ours, _, _ = take(routes, [2, 3, 2, 1], kind=Upside)
    theirs, _, _ = take(routes, [2, 3, 2, 1], kind=Upside, slicing=False)
    with pytest.raises(AssertionError):
        assert_equal(ours, theirs)


def test_a_module_without_a_function_leaves_all_streams_alone() -> None:
    class Scaled(nn.Linear):
        pass

    class Odd(GPT):
        def __init__(self, *sizes: int, **options: int) -> None:
            super().__init__(*sizes, **options)
            self.head = Scaled(sizes[1], sizes[3], bias=False)

    _, run, ran = take(MIDDLE, [1, 1, 1], kind=Odd)
    assert "head" in run.accumulation.planner.unsliced
    assert "sliced" not in ran
