"""One governed step over JAX: what moves, what is left alone, what it costs, what is refused."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from govray.engine.jax.domain_gradients import GroupOptimizer
from govray.engine.jax.gpt import FlaxGPT, loss
from govray.engine.jax.keyed_dropout import row_keys
from govray.engine.jax.layer_groups import layer_groups
from govray.engine.jax.named_parameters import named_parameters
from govray.engine.jax.routed_pass import PassRoute, model_shape, routed_pass
from govray.engine.jax.startup.row_trial import RowTrial
from govray.engine.steps.batch import IGNORED, StepBatch
from govray.engine.steps.routed_step import RoutedStep
from govray.errors import GovrayError, RankFailed, Refused, UsageError
from govray.governance.policy.route import Route
from tests.support.table import each_row
from tests.support.tiny_flax import (
    EVERYTHING,
    NOTES,
    UPPER,
    VOCABULARY,
    WIDTH,
    Tiny,
    digest,
    plan,
    read,
    tiny_step,
)

OPEN = {"open": EVERYTHING}


def first(corpora: dict[str, Route]) -> StepBatch:
    return read(plan(corpora), 0, 0, 1)


def digests(step: RoutedStep) -> dict[str, str]:
    """SHA-256 of every weight and every array of the optimizer."""
    found = {name: digest(value) for name, value in step.framework.parameters().items()}
    for group, state in step.framework.optimizer.states.items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
            found[f"{group}: {jax.tree_util.keystr(path)}"] = digest(leaf)
    return found


def test_a_group_without_rows_is_left_alone() -> None:
    corpora = {"weak": UPPER, "notes": NOTES}
    step = tiny_step(Tiny(), corpora)
    before = digests(step)
    step(first(corpora), loss)
    after = digests(step)
    changed = {name for name in before if before[name] != after[name]}
    below = {n for n in before if n.startswith(("embedding", "blocks.0", "block.0"))}
    assert below
    assert not below & changed
    assert {"blocks.1.linear.kernel", "head.kernel", "block.1: [0].count"} <= changed


@pytest.mark.parametrize("made", [optax.sgd, optax.inject_hyperparams(optax.sgd)])
def test_a_schedule_reads_the_step_of_the_plan(made) -> None:
    """However few updates a group has had. Optax alone counts those."""
    weights = {"w": jnp.ones(3)}
    rate = made(lambda count: jnp.where(count == 7, 1.0, 0.0))
    optimizer = GroupOptimizer(rate, {"head": ["w"]}, weights)
    early, _ = optimizer.moved("head", 3, weights, weights)
    due, _ = optimizer.moved("head", 7, weights, weights)
    assert early["w"].tolist() == [1, 1, 1]
    assert due["w"].tolist() == [0, 0, 0]


def flops(route: Route) -> float:
    """What the compiler is asked to do for rows of one route: XLA's own count."""
    model = nnx.eval_shape(lambda: FlaxGPT(4, 128, 16, 32, rngs=nnx.Rngs(0)))
    groups = layer_groups(model)
    weights = {name: w for group, w in route.weights.items() for name in groups[group]}
    parameters = {n: v.get_value() for n, v in named_parameters(model).items()}
    shape, rest = model_shape(model)
    lowered = routed_pass.lower(
        shape,
        PassRoute(tuple(sorted(weights.items())), None),
        loss,
        {name: parameters[name] for name in weights},
        {name: value for name, value in parameters.items() if name not in weights},
        rest,
        row_keys(1, 0, "stream", range(4)),
        {name: np.zeros((4, 16), np.int32) for name in ("tokens", "targets")},
    )
    return lowered.cost_analysis()["flops"]


def test_work_for_forbidden_layers_is_left_out() -> None:
    """Of the upper half: all of the forward, half of the backward."""
    groups = ["embedding", *(f"block.{i}" for i in range(4)), "final_norm", "head"]
    all_of_it = flops(Route(dict.fromkeys(groups, 1.0)))
    upper = flops(Route(dict.fromkeys(groups[3:], 1.0)))
    head = flops(Route({"head": 1.0}))
    lowest = flops(Route({"embedding": 1.0}))
    assert upper / all_of_it == pytest.approx(2 / 3, abs=0.05)
    assert head / all_of_it == pytest.approx(1 / 3, abs=0.05)
    # Input gradients flow through all blocks, and no weight of them has one.
    assert lowest / all_of_it == pytest.approx(2 / 3, abs=0.05)


def test_masking_afterwards_would_leave_nothing_out() -> None:
    """Negative control: a weight that is nearly nothing is computed all the same."""
    groups = ["embedding", *(f"block.{i}" for i in range(4)), "final_norm", "head"]
    full = flops(Route(dict.fromkeys(groups, 1.0)))
    masked = flops(Route(dict.fromkeys(groups, 1e-9) | {"head": 1.0}))
    assert masked >= full


def test_layer_groups_of_the_built_in_model() -> None:
    model = nnx.eval_shape(lambda: FlaxGPT(2, 8, 4, 5, rngs=nnx.Rngs(0)))
    groups = layer_groups(model)
    assert [*groups] == ["embedding", "block.0", "block.1", "final_norm", "head"]
    assert groups["block.1"][-1] == "blocks.1.mlp_norm.scale"
    named = layer_groups(model, {"attention": ["blocks.*.attention.*"]})
    assert [*named][-1] == "attention"
    assert len(named["attention"]) == 4


class Tied(nnx.Module):
    def __init__(self, extra: bool = False) -> None:
        rngs = nnx.Rngs(0)
        if extra:
            self.early = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.embedding = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(WIDTH, WIDTH, use_bias=False, rngs=rngs)])

    def __call__(self, tokens):
        return self.embedding.attend(self.blocks[0](self.embedding(tokens)))


class Counting(Tied):
    """A forward that leaves something behind."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = nnx.Variable(jnp.zeros(()))

    def __call__(self, tokens):
        self.calls.set_value(self.calls.get_value() + 1)
        return super().__call__(tokens)


class Drawing(Tied):
    """A forward that draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.rngs = nnx.Rngs(3)

    def __call__(self, tokens):
        return super().__call__(tokens) * jax.random.uniform(self.rngs.noise())


TIED = {"open": Route({"embedding+head": 1.0, "block.0": 1.0})}


@pytest.mark.parametrize(
    ("model", "says"),
    [(Counting, "Cannot mutate Variable"), (Drawing, "Cannot mutate RngCount")],
)
def test_state_that_classes_would_share_is_refused(model: type[Tied], says: str) -> None:
    step = tiny_step(model(), TIED)
    before = digests(step)
    with pytest.raises(Refused, match=says):
        step(first(TIED), loss)
    assert digests(step) == before


class Centred(Tiny):
    """Each logit, less its mean over rows."""

    def __call__(self, tokens):
        logits = super().__call__(tokens)
        return logits - logits.mean(0)


class Scaled(Tiny):
    """Has a parameter that hardly matters."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[0].scale = nnx.Param(jnp.ones(()))

    def __call__(self, tokens):
        return super().__call__(tokens) * (1 + 1e-7 * self.blocks[0].scale[...])


def balanced(model, tensors):
    """A hidden part of the loss is shared by all rows: it has no value, only a gradient."""
    shared = model.head.kernel[...].sum() * model(tensors["tokens"]).mean()
    return loss(model, tensors) + 0.01 * (shared - jax.lax.stop_gradient(shared))


def faint(model, tensors):
    """What rows share reaches one parameter, so small that it is lost among all gradients."""
    shared = model.blocks[0].scale[...] * model(tensors["tokens"]).mean()
    return loss(model, tensors) + 1e-6 * (shared - jax.lax.stop_gradient(shared))


def without_a_number(model, tensors):
    """Its value is as ever, and its gradient is no number by what the other rows say."""
    hidden = model.head.kernel[...].sum() * 0
    sums = tensors["tokens"].sum(1)
    ordered = sums[1 % len(sums)] < sums[2 % len(sums)]
    root = jnp.sqrt(jnp.where(ordered, hidden, 1.0)) - jnp.where(ordered, 0.0, 1.0)
    return loss(model, tensors) + root


def counted(model, tensors):
    return loss(model, tensors) / len(tensors["targets"])


@each_row(
    ("model", "loss_fn", "says"),
    [
        (Centred, loss, r"loss_fn: a row's loss differs by .* beside it"),
        (Tiny, balanced, r"a row's gradient of \S+ differs by .* beside it"),
        (Scaled, faint, r"a row's gradient of blocks.0.scale differs by .* beside it"),
        (Tiny, without_a_number, r"a row's gradient of \S+ differs by nan with .* beside it"),
        (Tiny, counted, r"loss_fn: a row's loss differs by .* beside it"),
    ],
)
def test_rows_that_learn_from_each_other_are_refused(model, loss_fn, says: str) -> None:
    step = tiny_step(model(), OPEN)
    before = digests(step)
    with pytest.raises(Refused, match=says):
        step(first(OPEN), loss_fn)
    assert digests(step) == before


def test_without_the_trial_they_would_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowTrial, "due", lambda *_: False)
    step = tiny_step(Centred(), OPEN)
    before = digests(step)
    step(first(OPEN), loss)
    assert digests(step) != before


class Recomputed(Tiny):
    """Computes itself again in backward, and keeps plain containers."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes, self.named = [1, 2], {"a": [3]}

    @nnx.remat
    def __call__(self, tokens):
        return super().__call__(tokens)


class Written(Recomputed):
    """Writes a parameter, where only its numbers show it."""

    @nnx.remat
    def __call__(self, tokens):
        self.head.kernel.set_value(1.5 * self.head.kernel.get_value())
        return Tiny.__call__(self, tokens)


def test_ordinary_models_of_flax_train_as_plain_ones() -> None:
    corpora = {"open": EVERYTHING, "notes": NOTES}
    plain, again = tiny_step(Tiny(), corpora), tiny_step(Recomputed(), corpora)
    for step in (plain, again):
        step(first(corpora), loss)
    for name, value in plain.framework.parameters().items():
        assert np.allclose(value, again.framework.parameters()[name], atol=1e-6), name
    with pytest.raises(Refused, match=r"variable head\.kernel is another after the forward pass"):
        tiny_step(Written(), corpora)(first(corpora), loss)


def bad_targets(batch: StepBatch) -> StepBatch:
    (part,) = batch.micro_batches
    targets = part.tensors["targets"].copy()
    targets[0, 0] = IGNORED
    return replace(
        batch, micro_batches=(replace(part, tensors={**part.tensors, "targets": targets}),)
    )


def mean_loss(model: nnx.Module, batch: dict[str, jax.Array]) -> jax.Array:
    return loss(model, batch).mean()


def infinite_loss(model: nnx.Module, batch: dict[str, jax.Array]) -> jax.Array:
    return loss(model, batch) * jnp.inf


@each_row(
    ("change", "loss_fn", "kind", "says"),
    [
        (bad_targets, loss, Refused, "row_targets says"),
        (lambda batch: batch, mean_loss, UsageError, "returned shape"),
        (lambda batch: batch, infinite_loss, RankFailed, "is not finite"),
        (lambda b: replace(b, error="no disk", refused=True), loss, Refused, "no disk"),
    ],
)
def test_a_step_that_fails_moves_nothing(change, loss_fn, kind, says: str) -> None:
    step = tiny_step(Tiny(), OPEN)
    before = digests(step)
    with pytest.raises(kind, match=says) as caught:
        step(change(first(OPEN)), loss_fn)
    assert isinstance(caught.value, GovrayError)
    assert digests(step) == before
