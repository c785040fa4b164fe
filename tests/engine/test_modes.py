"""A governed step under the modes that people train in: exact to a stated bound, or refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from govray.engine.collective.step_settings import Precision
from govray.engine.gradients import forward as forward_module
from govray.engine.gradients import pass_planner
from govray.engine.gradients.forward import LossFn
from govray.engine.gradients.precision import cast_parameters
from govray.engine.model import adapters as adapters_module
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, IGNORED, loss
from govray.engine.model.layer_groups import layer_groups
from govray.engine.startup.row_trial import StartupTrial
from govray.engine.step import GovernedStep
from govray.errors import Refused
from govray.governance.policy.route import Route
from tests.support.cases import allow_all, governed, micro_batch, step_batch, token_rows
from tests.support.row_oracle import by_definition, seen_by
from tests.support.table import each_row

BLOCKS, WIDTH, CONTEXT, VOCABULARY = 3, 16, 6, 13
GROUPS = ["embedding", *(f"block.{i}" for i in range(BLOCKS)), "final_norm", "head"]

ALL = Route(dict.fromkeys(GROUPS, 1.0))
UPPER = Route(dict.fromkeys(GROUPS[3:], 1.0))
MIDDLE = Route({"block.1": 0.5})
LEFT = Route({}, "left", 2)
MIXED = {ALL: 3, UPPER: 4, MIDDLE: 2, LEFT: 3}

HALF_BOUND = 5e-2
"""‖ours − oracle‖ / ‖oracle‖ of each tensor; bfloat16 rounds to 2**-9 at every operation."""

ADDED_BOUND = 1e-2
"""The same against an oracle that rounds as we do: what governing by itself may add."""

Rows = Mapping[Route, Mapping[str, Tensor]]


class Checkpointed(GPT):
    """Recomputes every block in backward."""

    reentrant = False

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=self.reentrant)
        return self.head(self.final_norm(hidden))


class Reentrant(Checkpointed):
    """The same, the old way."""

    reentrant = True


def build(
    kind: type[GPT] = GPT, dtype: torch.dtype = torch.float64, dropout: float = 0.0
) -> tuple[GPT, Adapters]:
    """No weight is zero, B of the adapter included; none so large that rounding is amplified."""
    torch.manual_seed(3)
    model = kind(BLOCKS, WIDTH, CONTEXT, VOCABULARY, heads=2, dropout=dropout).to(dtype)
    adapters = Adapters(model, {"left": 2}, seed=0)
    generator = torch.Generator().manual_seed(4)
    own = dict(adapters.named_parameters()).values()
    with torch.no_grad():
        for std, parameters in ((0.2, model.parameters()), (0.05, own)):
            for parameter in parameters:
                drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(std * drawn + (parameter.dim() == 1))
    return model, adapters


def rows_of(counts: Mapping[Route, int], step: int = 0) -> Rows:
    """So many rows of each stream, some of whose targets do not count."""
    rows = {}
    for index, (route, count) in enumerate(counts.items()):
        tensors = token_rows(count, CONTEXT, VOCABULARY, step, index)
        tensors["targets"][: count // 2, : index + 1] = IGNORED
        rows[route] = tensors
    return rows


def run_of(
    model: nn.Module,
    adapters: Adapters,
    optimizer: torch.optim.Optimizer | None = None,
    routes: Sequence[Route] = (ALL, UPPER, MIDDLE, LEFT),
    **settings: Any,
) -> GovernedStep:
    parameters = [*model.parameters(), *dict(adapters.named_parameters()).values()]
    optimizer = optimizer or torch.optim.SGD(parameters, lr=1e-2)
    return governed(model, optimizer, routes, adapters=adapters, **settings)


def take(run: GovernedStep, rows: Rows, loss_fn: LossFn, step: int = 0) -> dict[str, Tensor]:
    """One step; the gradients that the optimizer saw."""
    seen = seen_by(run.optimizer, run.routed.parameters)
    batch = [
        micro_batch(route, tensors) for route, tensors in rows.items() if len(tensors["targets"])
    ]
    run(step_batch(step, batch), loss_fn)
    return {name: gradient for name, gradient in seen.items() if gradient is not None}


def oracle(model: nn.Module, adapters: Adapters, rows: Rows, loss_fn: LossFn) -> dict[str, Tensor]:
    groups = {**layer_groups(model), **adapters.groups}
    group_of = {name: group for group, names in groups.items() for name in names}
    found = by_definition(
        model, rows.items(), loss_fn, group_of.__getitem__, adapters, merged=False
    )
    return {name: each for name, each in found.gradients.items() if each is not None}


def distance(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """The largest relative error of a tensor; both hold the same tensors."""
    assert ours.keys() == theirs.keys()
    return max(
        float((ours[name].double() - other.double()).norm() / other.double().norm())
        for name, other in theirs.items()
    )


def bf16(loss_fn: LossFn, dtype: torch.dtype = torch.bfloat16) -> LossFn:
    """What a user writes for mixed precision."""

    def autocast(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return loss_fn(model, tensors)

    return autocast


@each_row("max_rows", [None, 2])
def test_accumulation_sums_gradients_and_counts_and_divides_once(max_rows: int | None) -> None:
    rows = rows_of(MIXED)
    expected = oracle(*build(), rows, loss)
    run = run_of(*build(), max_rows=max_rows)
    assert distance(take(run, rows, loss), expected) <= 1e-12


def test_the_oracle_sees_a_mean_of_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: dividing every pass by its own targets, the usual way to accumulate."""
    rows = rows_of(MIXED)

    def averaged(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        losses = loss(model, tensors)
        return losses / (tensors["targets"] != IGNORED).sum() * losses.numel()

    with pytest.raises(Refused, match="rows would learn from each other"):
        take(run_of(*build(), max_rows=2), rows, averaged)
    monkeypatch.setattr(StartupTrial, "__call__", lambda *_: None)
    found = take(run_of(*build(), max_rows=2), rows, averaged)
    assert distance(found, oracle(*build(), rows, loss)) > 1e-3


@pytest.mark.parametrize("by", ["setting", "loss"])
def test_bf16_autocast_stays_within_its_bound_of_the_float32_oracle(by: str) -> None:
    rows = rows_of(MIXED)
    expected = oracle(*build(dtype=torch.float32), rows, loss)
    precision = "bf16-mixed" if by == "setting" else "fp32"
    run = run_of(*build(dtype=torch.float32), precision=precision)
    found = take(run, rows, loss if by == "setting" else bf16(loss))
    assert all(gradient.dtype is torch.float32 for gradient in found.values())
    assert 1e-3 < distance(found, expected) < HALF_BOUND  # so autocast did take place
    assert distance(found, oracle(*build(dtype=torch.float32), rows, bf16(loss))) < ADDED_BOUND


def test_bf16_parameters_stay_within_their_bound_of_the_oracle_in_float32() -> None:
    rows = rows_of(MIXED)
    model, adapters = build(dtype=torch.bfloat16)
    wide, wide_adapters = build(dtype=torch.float32)
    with torch.no_grad():
        for ours, theirs in (
            *zip(wide.parameters(), model.parameters(), strict=True),
            *(
                (a, b)
                for (_, a), (_, b) in zip(
                    wide_adapters.named_parameters(), adapters.named_parameters(), strict=True
                )
            ),
        ):
            ours.copy_(theirs)
    found = take(run_of(model, adapters), rows, loss)
    assert all(gradient.dtype is torch.bfloat16 for gradient in found.values())
    # Kept in bfloat16 between operations: twice what autocast loses.
    assert distance(found, oracle(wide, wide_adapters, rows, loss)) < 2 * HALF_BOUND


@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed"])
def test_allow_all_in_bf16_is_plain_bf16_training_bit_for_bit(precision: Precision) -> None:
    mixed = precision == "bf16-mixed"
    dtype = torch.float32 if mixed else torch.bfloat16
    ours, theirs = build(dtype=torch.float32)[0], build(dtype=dtype)[0]
    if not mixed:
        cast_parameters(ours)
    route = allow_all(ours)
    run = governed(
        ours, torch.optim.AdamW(ours.parameters(), lr=1e-2), [route], precision=precision
    )
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    plain_loss = bf16(loss) if mixed else loss
    for step in range(3):
        (tensors,) = rows_of({route: 5}, step).values()
        take(run, {route: tensors}, loss, step)
        plain_loss(theirs, tensors).sum().backward()
        for parameter in theirs.parameters():
            count = int((tensors["targets"] != IGNORED).sum())
            parameter.grad = (parameter.grad.float() / count).to(dtype)
        optimizer.step()
        optimizer.zero_grad()
    for mine, plain in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, plain)


def around(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
    return bf16(loss, torch.float16)(model, tensors)


def blocks_only(model: GPT, tensors: Mapping[str, Tensor]) -> Tensor:
    hidden = model.embedding(tensors["tokens"])
    with torch.autocast("cpu", dtype=torch.float16):
        for block in model.blocks:
            hidden = block(hidden)
    logits = model.head(model.final_norm(hidden.float()))
    return F.cross_entropy(logits.transpose(1, 2), tensors["targets"], reduction="none")


def scaled(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
    """What a script with a GradScaler becomes."""
    return torch.amp.GradScaler("cpu", init_scale=2.0**16).scale(around(model, tensors))


@each_row(("loss_fn", "kind"), [(around, GPT), (blocks_only, Checkpointed), (scaled, GPT)])
def test_float16_autocast_is_refused_wherever_it_happens(loss_fn: Any, kind: type[GPT]) -> None:
    model, adapters = build(kind, dtype=torch.float32)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(Refused, match=r"gradients in float16.*Use bfloat16"):
        take(run_of(model, adapters), rows_of(MIXED), loss_fn)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_without_the_refusal_float16_loses_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: small losses, which bfloat16 carries."""

    def small(dtype: torch.dtype) -> LossFn:
        loss_fn = bf16(loss, dtype)
        return lambda model, tensors: loss_fn(model, tensors) * 1e-9

    monkeypatch.setattr(forward_module, "refuse_float16", lambda losses: None)
    lost = take(run_of(*build(dtype=torch.float32)), rows_of(MIXED), small(torch.float16))
    kept = take(run_of(*build(dtype=torch.float32)), rows_of(MIXED), small(torch.bfloat16))
    assert not any(gradient.any() for name, gradient in lost.items() if "mlp" in name)
    assert all(gradient.any() for gradient in kept.values())


@each_row(("dropout", "max_rows"), [(0.0, 2), (0.2, None)])
def test_checkpointing_changes_no_bit(dropout: float, max_rows: int | None) -> None:
    rows = rows_of(MIXED)
    found = []
    for kind in (GPT, Checkpointed):
        run = run_of(*build(kind, dropout=dropout), max_rows=max_rows)
        found.append(take(run, rows, loss))
    plain, recomputed = found
    assert plain.keys() == recomputed.keys()
    for name, gradient in plain.items():
        assert torch.equal(recomputed[name], gradient), name
    if not dropout:
        assert distance(recomputed, oracle(*build(), rows, loss)) <= 1e-12


@each_row("route", [ALL, UPPER, MIDDLE, LEFT])
def test_reentrant_checkpointing_is_exact_or_refused(route: Route) -> None:
    rows = rows_of({route: 3})
    run = run_of(*build(Reentrant))
    if route is ALL:
        assert distance(take(run, rows, loss), oracle(*build(), rows, loss)) <= 1e-12
    else:
        with pytest.raises(Refused, match="use_reentrant=False"):
            take(run, rows, loss)


def in_place(model: GPT, backend: Any) -> LossFn:
    model.compile(backend=backend)
    return loss


def by_block(model: GPT, backend: Any) -> LossFn:
    for block in model.blocks:
        block.compile(backend=backend)
    return loss


@pytest.fixture
def many_graphs() -> Any:
    """Room for every graph, so that the number tells."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=64):
        yield
    torch._dynamo.reset()


def compositions(steps: int) -> list[Mapping[Route, int]]:
    """Numbers of rows that vary from 0 to 6 for each stream."""
    drawn = random.Random(0)
    return [{route: drawn.randint(0, 6) for route in MIXED} for _ in range(steps)]


@pytest.mark.story
@pytest.mark.parametrize(
    ("how", "most"),
    [(in_place, 7), (by_block, 12)],
    ids=["model in place", "blocks"],
)
@pytest.mark.usefixtures("many_graphs")
def test_a_handful_of_graphs_serves_every_composition(
    how: Callable[[GPT, Any], LossFn], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What varies is the route and the presence of other rows, never their number."""
    monkeypatch.setattr(pass_planner, "slicing_pays", lambda *_: True)
    plain, compiled = run_of(*build(dtype=torch.float32)), build(dtype=torch.float32)
    backend = CompileCounterWithBackend("eager")
    run, loss_fn = run_of(*compiled), how(compiled[0], backend)
    graphs = []
    for step, counts in enumerate(compositions(20)):
        rows = rows_of(counts, step)
        expected = take(plain, rows, loss, step)
        if expected:
            assert distance(take(run, rows, loss_fn, step), expected) <= 1e-5
        graphs.append(backend.frame_count)
    assert 0 < graphs[9] == graphs[-1] <= most, graphs


@pytest.mark.usefixtures("many_graphs")
def test_compiled_backward_is_exact_with_checkpointing_and_adapters() -> None:
    """Traced, cut and run by AOT autograd, as for any backend."""
    rows = rows_of({MIDDLE: 2, LEFT: 3})
    model, adapters = build(Checkpointed)
    run = run_of(model, adapters, routes=[MIDDLE, LEFT])
    loss_fn = by_block(model, "aot_eager")
    assert distance(take(run, rows, loss_fn), oracle(*build(), rows, loss)) <= 1e-12


BESIDE = Route(ALL.weights, "left", 2)


def compiled_before(rows: Rows) -> dict[str, Tensor]:
    """A model that was compiled and used before it has adapters."""
    torch.manual_seed(3)
    model = GPT(BLOCKS, WIDTH, CONTEXT, VOCABULARY, heads=2)
    for block in model.blocks:  # a keyed dropout in its place would make other graphs
        block.attention.dropout = block.mlp.dropout = nn.Identity()
    loss_fn = by_block(model, "eager")
    for tensors in rows.values():
        loss_fn(model, tensors)
    return take(run_of(model, Adapters(model, {"left": 2}, seed=0), routes=[BESIDE]), rows, loss_fn)


@pytest.mark.usefixtures("many_graphs")
def test_a_model_compiled_before_it_has_adapters_reads_them() -> None:
    rows = rows_of({BESIDE: 3})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "reset", lambda: None)
        assert all(g.any() for n, g in compiled_before(rows).items() if "lora_B" in n)
        # The control: the old graphs run, and no row reaches the adapter.
        patch.setattr(adapters_module, "without_graphs", nullcontext)
        patch.setattr(Adapters, "_override", lambda *_: False)  # torch would notice it
        patch.setattr(StartupTrial, "__call__", lambda *_: None)  # and so would this
        torch._dynamo.reset()
        assert not any(g.any() for n, g in compiled_before(rows).items() if "lora_B" in n)


class Spare(GPT):
    """Its second block holds a layer that no forward calls."""

    def __init__(self, *args: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self.blocks[1].spare = nn.Linear(WIDTH, WIDTH)


def test_an_unused_parameter_has_a_zero_gradient_where_its_group_has_targets() -> None:
    rows = rows_of(MIXED)
    found = take(run_of(*build(Spare)), rows, loss)
    spare = {name for name in found if "spare" in name}
    # The adapter has a pair for the layer too.
    assert {"blocks.1.spare.weight", "adapter:left/blocks.1.spare.lora_A.weight"} <= spare
    assert not any(found[name].any() for name in spare)
    expected = oracle(*build(Spare), rows, loss)
    assert all(not expected.pop(name).any() for name in spare)
    assert distance({n: g for n, g in found.items() if n not in spare}, expected) <= 1e-12
    # No row for its group: absent, as everything else in it.
    assert not spare & take(run_of(*build(Spare)), rows_of({UPPER: 2}), loss).keys()
