"""One governed step in one process: what moves, what stays, and what is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from govray.engine.collective import allreduce
from govray.engine.collective.allreduce import bucket_layout
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, IGNORED, loss
from govray.engine.model.layer_groups import layer_groups
from govray.errors import GovrayError, RankFailed, Refused, UsageError
from govray.governance.policy.route import Route
from tests.support.cases import CORPUS, allow_all, governed, micro_batch, step_batch, token_rows
from tests.support.table import each_row
from tests.support.violations import zero_instead_of_absent

CONTEXT, VOCABULARY = 8, 13
UPPER = Route({"block.1": 1.0, "final_norm": 1.0, "head": 1.0})
SILENT = Route({"embedding": 1.0})
NOTES = Route({}, "notes", 2)


def gpt(dropout: float = 0.0) -> GPT:
    torch.manual_seed(3)
    return GPT(2, 16, CONTEXT, VOCABULARY, dropout=dropout)


def adamw(*parameters: nn.Parameter) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.5)


def batch(step: int, *routes: Route, rows: int = 3) -> Any:
    return step_batch(
        step,
        [
            micro_batch(route, token_rows(rows, CONTEXT, VOCABULARY, step, index))
            for index, route in enumerate(routes)
        ],
    )


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def moved(model: nn.Module, before: Mapping[str, Tensor]) -> set[str]:
    return {n.split(".weight")[0] for n, p in model.named_parameters() if not p.equal(before[n])}


@pytest.mark.parametrize("linked", [False, True], ids=["another domain", "the same domain"])
def test_a_group_without_targets_is_left_alone_by_the_optimizer(linked: bool) -> None:
    model = gpt()
    optimizer = adamw(*model.parameters())
    run = governed(model, optimizer, [UPPER, allow_all(model) if linked else SILENT])
    before = snapshot(model)
    result = run(batch(0, UPPER), loss)
    below = {name for name in before if not name.startswith(("blocks.1", "final_norm", "head"))}
    for name, parameter in model.named_parameters():
        # No decay, no momentum, no step count; and all of them above.
        assert parameter.equal(before[name]) == (name in below)
        assert (parameter in optimizer.state) == (name not in below)
    assert result.group_targets == {
        "embedding": 0,
        "block.0": 0,
        "block.1": 24,
        "final_norm": 24,
        "head": 24,
    }


def test_a_zero_gradient_is_not_an_absent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: were absent gradients zeros, weight decay would move the layers below."""
    zero_instead_of_absent(monkeypatch)
    model = gpt()
    before = snapshot(model)
    governed(model, adamw(*model.parameters()), [UPPER, SILENT])(batch(0, UPPER), loss)
    assert "embedding.tokens" in moved(model, before)


def test_an_adapter_only_stream_moves_its_adapter_and_nothing_else() -> None:
    model = gpt()
    adapters = Adapters(model, {"notes": 2, "other": 2}, seed=0)
    own = dict(adapters.named_parameters())
    before, own_before = snapshot(model), {n: p.detach().clone() for n, p in own.items()}
    run = governed(
        model,
        adamw(*model.parameters(), *own.values()),
        [allow_all(model), NOTES],
        adapters=adapters,
    )
    result = run(batch(0, NOTES), loss)
    assert moved(model, before) == set()
    changed = {n for n, p in own.items() if not p.equal(own_before[n])}
    # B starts at zero, so A's first gradient is zero, yet it decays: it did get one.
    assert changed == {n for n in own if n.startswith("adapter:notes/")}
    assert set(result.grad_norms) == {"adapter:notes"}
    assert result.group_targets["adapter:notes"] == 24


def test_backward_ends_below_the_lowest_permitted_group() -> None:
    model = gpt()
    reached: list[str] = []
    for index, block in enumerate(model.blocks):
        # A tensor hook sees the gradient only if backward gets there.
        def watch(module: nn.Module, args: object, output: Tensor, index: int = index) -> None:
            if output.requires_grad:
                output.register_hook(lambda gradient: reached.append(f"block.{index}"))

        block.register_forward_hook(watch)
    run = governed(model, adamw(*model.parameters()), [UPPER, Route({"embedding": 1.0})])
    run(batch(0, UPPER), loss)
    reached.clear()  # the start-up trial's
    run(batch(1, UPPER), loss)
    assert reached == ["block.1"]
    # And input gradients flow through layers that the route leaves out.
    run(batch(2, Route({"embedding": 1.0})), loss)
    reached.clear()
    run(batch(3, Route({"embedding": 1.0})), loss)
    assert reached == ["block.1", "block.0"]


def test_requires_grad_and_gradients_are_left_as_they_were_found() -> None:
    model = gpt()
    model.final_norm.weight.requires_grad_(False)
    run = governed(model, adamw(*model.parameters()), [UPPER])
    found = {n: p.requires_grad for n, p in model.named_parameters()}
    run(batch(0, UPPER), loss)
    assert {n: p.requires_grad for n, p in model.named_parameters()} == found

    def broken(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
        raise ValueError("boom")

    with pytest.raises(RankFailed, match="rank 0, step 1: ValueError: boom"):
        run(batch(1, UPPER), broken)
    assert {n: p.requires_grad for n, p in model.named_parameters()} == found
    assert all(p.grad is None for p in model.parameters())
    assert not model.blocks[1].mlp.up.weight._backward_hooks


def test_a_gradient_that_no_route_permits_is_refused() -> None:
    model = gpt()
    run = governed(model, adamw(*model.parameters()), [UPPER])
    before = snapshot(model)

    def opening(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
        for p in model.parameters():
            p.requires_grad_(True)
        return loss(model, rows)

    with pytest.raises(Refused, match=r"embedding\.tokens\.weight received a gradient that no"):
        run(batch(0, UPPER), opening)
    assert moved(model, before) == set()


def test_each_domain_is_clipped_by_its_own_norm() -> None:
    model = gpt()
    adapters = Adapters(model, {"notes": 2}, seed=0)
    own = dict(adapters.named_parameters())
    optimizer = torch.optim.SGD([*model.parameters(), *own.values()], lr=1e-3)
    norms: list[float] = []

    def look(*_: object) -> None:
        for parameters in (model.parameters(), own.values()):
            norms.append(
                float(sum(float(p.grad.norm()) ** 2 for p in parameters if p.grad is not None))
            )

    optimizer.register_step_pre_hook(look)
    run = governed(model, optimizer, [UPPER, NOTES], adapters=adapters, clip_norm=0.01)
    result = run(batch(0, UPPER, NOTES), loss)
    assert [math.sqrt(n) for n in norms] == pytest.approx([0.01, 0.01], rel=1e-2)
    assert set(result.grad_norms) == {"block.1", "adapter:notes"}
    assert result.grad_norms["block.1"] > 0.01


def test_rows_without_targets_count_as_rows_and_train_nothing() -> None:
    model = gpt()
    tensors = token_rows(2, CONTEXT, VOCABULARY, 0)
    tensors["targets"].fill_(IGNORED)
    before = snapshot(model)
    run = governed(model, adamw(*model.parameters()), [UPPER])
    result = run(step_batch(0, [micro_batch(UPPER, tensors)]), loss)
    assert moved(model, before) == set()
    assert result.corpus_counts == {CORPUS: (2, 0)}


def test_losses_at_ignored_targets_do_not_count_even_if_the_loss_gives_them() -> None:
    def every_position(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
        return loss(model, {**rows, "targets": rows["targets"].clamp(min=0)})

    weights = []
    for loss_fn in (loss, every_position):
        model = gpt()
        tensors = token_rows(2, CONTEXT, VOCABULARY, 0)
        tensors["targets"][:, -3:] = IGNORED
        run = governed(model, adamw(*model.parameters()), [UPPER])
        run(step_batch(0, [micro_batch(UPPER, tensors)]), loss_fn)
        weights.append(model)
    assert moved(weights[0], snapshot(weights[1])) == set()


def test_what_different_streams_update_shares_no_bucket() -> None:
    parameters = {f"p{i}": nn.Parameter(torch.empty(1)) for i in range(6)}
    streams = {n: frozenset(("all", "upper") if n > "p2" else ("all",)) for n in parameters}
    domain = allreduce.lay_out("d", frozenset({"g"}), parameters, bucket_layout, streams)
    assert domain.buckets == (("p5", "p4", "p3"), ("p2", "p1", "p0"))
    assert allreduce.lay_out("d", frozenset({"g"}), parameters, bucket_layout).buckets == (
        ("p5", "p4", "p3", "p2", "p1", "p0"),
    )


class Block(nn.Module):
    """A residual block around one layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.layer(hidden)


def model_with(layer: nn.Module, *, sparse: bool = False) -> nn.Module:
    """Tokens (rows, tokens) → logits, through one block around the layer."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, CONTEXT, sparse=sparse)
            self.blocks = nn.ModuleList([Block(layer)])
            self.head = nn.Linear(CONTEXT, VOCABULARY)

        def forward(self, tokens: Tensor) -> Tensor:
            hidden = self.embed(tokens)
            for block in self.blocks:
                hidden = block(hidden)
            return self.head(hidden)

    return Model()


@each_row(
    ("model", "message"),
    [
        (model_with(nn.BatchNorm1d(CONTEXT)), r"blocks\.0\.layer: BatchNorm1d .*nn\.GroupNorm"),
        (
            model_with(nn.BatchNorm1d(CONTEXT, track_running_stats=False)),
            r"blocks\.0\.layer: BatchNorm1d",
        ),
        (model_with(nn.SyncBatchNorm(CONTEXT)), r"blocks\.0\.layer: SyncBatchNorm"),
        (
            model_with(nn.InstanceNorm1d(CONTEXT, affine=True, track_running_stats=True)),
            r"blocks\.0\.layer: InstanceNorm1d",
        ),
        (model_with(nn.Linear(CONTEXT, CONTEXT), sparse=True), "embed: sparse gradients"),
        (
            model_with(nn.BatchNorm1d(CONTEXT, track_running_stats=False).eval()),
            "without running statistics normalises by those of other rows",
        ),
        (model_with(nn.Embedding(3, 8, max_norm=1.0)), "max_norm rewrites the rows"),
        (model_with(nn.EmbeddingBag(3, 8, max_norm=1.0)), "max_norm rewrites the rows"),
        (model_with(nn.Embedding(3, 8, scale_grad_by_freq=True)), "scale_grad_by_freq"),
    ],
)
def test_models_that_cannot_be_routed_exactly_are_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(Refused, match=message):
        governed(model, adamw(*model.parameters()), [allow_all(model)])


def test_batch_norm_that_is_switched_on_later_is_refused() -> None:
    model = model_with(nn.BatchNorm1d(CONTEXT))
    model.blocks[0].layer.eval()
    run = governed(model, adamw(*model.parameters()), [allow_all(model)])
    before = snapshot(model)
    model.train()
    with pytest.raises(Refused, match=r"changed buffer blocks\.0\.layer\.num_batches_tracked"):
        run(batch(0, allow_all(model)), loss)
    assert moved(model, before) == set()


def routes_to_frozen_layers_only(model: GPT) -> dict[str, Any]:
    model.head.weight.requires_grad_(False)
    return {"routes": [Route({"head": 1.0})]}


def mixes_dtypes_in_a_bucket(model: GPT) -> dict[str, Any]:
    model.head.double()
    return {"layout": lambda parameters: [list(parameters)]}


STRANGER = nn.Parameter(torch.zeros(3))


@each_row(
    ("fault", "kind", "message"),
    [
        (
            lambda model: {"optimizer": adamw(*model.blocks.parameters())},
            UsageError,
            r"does not hold parameter embedding\.tokens\.weight",
        ),
        (
            lambda model: {"optimizer": adamw(*model.parameters(), STRANGER)},
            Refused,
            "neither the model's nor an adapter's",
        ),
        (lambda _: {"routes": [Route({"block.7": 1.0})]}, Refused, "block.7, which the model lack"),
        (lambda _: {"routes": [NOTES]}, Refused, "group adapter:notes, which the model lacks"),
        (routes_to_frozen_layers_only, Refused, "permits no parameter that can learn"),
        (lambda _: {"layout": lambda p: [list(p)[1:]]}, UsageError, "1: the buckets do not hold"),
        (
            lambda _: {"layout": lambda p: [list(p), list(p)[:1]]},
            UsageError,
            "domain block.1: the buckets do not hold",
        ),
        (mixes_dtypes_in_a_bucket, UsageError, "domain block.1: a bucket mixes dtypes"),
        (lambda _: {"clip_norm": 0.0}, UsageError, "clip_norm is 0.0"),
        (lambda _: {"max_rows": 0}, UsageError, "max_rows is 0"),
    ],
)
def test_a_set_up_that_cannot_work_is_refused_by_name(
    fault: Callable[[GPT], dict[str, Any]], kind: type[GovrayError], message: str
) -> None:
    model = gpt()
    changed = fault(model)
    optimizer = changed.pop("optimizer", None) or adamw(*model.parameters())
    with pytest.raises(kind, match=message):
        governed(model, optimizer, changed.pop("routes", [UPPER]), **changed)


def test_groups_must_hold_each_parameter_once() -> None:
    model = gpt()
    groups = layer_groups(model)
    for broken, name in (
        ({**groups, "head": ()}, r"head\.weight"),
        ({**groups, "again": groups["head"]}, r"head\.weight"),
    ):
        with pytest.raises(Refused, match=f"each parameter exactly once: see {name}"):
            governed(model, adamw(*model.parameters()), [UPPER], groups=broken)
