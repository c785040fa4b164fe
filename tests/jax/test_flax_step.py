"""One governed step over JAX: what moves, what is left alone, what it costs, what is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from govray.errors import GovrayError, RankFailed, Refused, UsageError
from govray.governance.policy.route import Route
from govray.jax.gpt import FlaxGPT, loss
from govray.jax.group_optimizer import require_separable
from govray.jax.keyed_dropout import row_keys
from govray.jax.layer_groups import layer_groups
from govray.jax.named_parameters import named_parameters
from govray.jax.routed_pass import PassRoute, model_shape, routed_pass
from govray.steps.batch import IGNORED, StepBatch
from govray.steps.expiry import NoLongerValid
from govray.steps.first_exchange import Terms
from govray.steps.routed_step import RoutedStep
from tests.support.tiny_flax import (
    ADAMW,
    CONTEXT,
    DIGEST,
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
    step = tiny_step(Tiny(), corpora, optax.adamw(1e-2, weight_decay=0.5))
    before = digests(step)
    step(first(corpora), loss)
    after = digests(step)
    changed = {name for name in before if before[name] != after[name]}
    below = {n for n in before if n.startswith(("embedding", "blocks.0", "block.0"))}
    assert below
    assert not below & changed
    assert {"blocks.1.linear.kernel", "head.kernel", "block.1: [0].count"} <= changed


def test_zeros_instead_of_nothing_would_move_it() -> None:
    """Negative control: weight decay, and the count of the bias correction."""
    weights = {"w": jnp.ones(3)}
    tx = optax.adamw(1e-2, weight_decay=0.5)
    updates, state = tx.update({"w": jnp.zeros(3)}, tx.init(weights), weights)
    assert np.abs(updates["w"]).min() > 0
    assert state[0].count == 1


def test_a_policy_that_allows_everything_changes_no_bit() -> None:
    """Plain training with the same reduction: a sum of losses, divided by the targets."""
    model = Tiny(dropout=0.0)
    batches = [read(plan(OPEN), at, 0, 1) for at in range(3)]
    weights = {n: v.get_value() for n, v in named_parameters(model).items()}
    shape, rest = model_shape(model)

    @jax.jit
    def gradients(weights, tokens, targets):
        def total(weights):
            own = shape.filled(weights, rest)
            return loss(own, {"tokens": tokens, "targets": targets}).sum()

        return jax.grad(total)(weights)

    @jax.jit
    def moved(weights, sums, count, state):
        mean = {name: g / count for name, g in sums.items()}
        updates, state = ADAMW.update(mean, state, weights)
        return optax.apply_updates(weights, updates), state

    state = ADAMW.init(weights)
    for batch in batches:
        tensors = batch.micro_batches[0].tensors
        sums = gradients(weights, tensors["tokens"], tensors["targets"])
        count = jnp.float32(batch.micro_batches[0].targets)
        weights, state = moved(weights, sums, count, state)
    step = tiny_step(model, OPEN, clip_norm=None)
    for batch in batches:
        step(batch, loss)
    found = {name: variable.get_value() for name, variable in named_parameters(model).items()}
    assert {n: digest(w) for n, w in found.items()} == {n: digest(w) for n, w in weights.items()}


def test_a_schedule_reads_the_step_of_the_plan() -> None:
    """However few updates a group has had. Optax alone counts those."""
    for made in (
        optax.sgd(lambda count: jnp.where(count == 7, 1.0, 0.0)),
        optax.inject_hyperparams(optax.sgd)(lambda count: jnp.where(count == 7, 1.0, 0.0)),
    ):
        step = tiny_step(Tiny(dropout=0.0), OPEN, made, clip_norm=None)
        before = digests(step)["head.kernel"]
        step(first(OPEN), loss)
        assert digests(step)["head.kernel"] == before
        step(replace(first(OPEN), step=7), loss)
        assert digests(step)["head.kernel"] != before


def test_rows_in_pieces_have_the_same_gradient() -> None:
    models = Tiny(), Tiny()
    whole = tiny_step(models[0], OPEN, optax.sgd(1.0), clip_norm=None)
    pieces = tiny_step(models[1], OPEN, optax.sgd(1.0), clip_norm=None, max_rows=2)
    assert whole(first(OPEN), loss).loss == pytest.approx(pieces(first(OPEN), loss).loss)
    for name, value in whole.framework.parameters().items():
        assert np.allclose(value, pieces.framework.parameters()[name], rtol=1e-5, atol=1e-6)


def flops(route: Route) -> float:
    """What the compiler is asked to do for rows of one route: XLA's own count."""
    model = FlaxGPT(4, 64, 64, 32, rngs=nnx.Rngs(0))
    groups = layer_groups(model)
    weights = {name: w for group, w in route.weights.items() for name in groups[group]}
    parameters = {n: v.get_value() for n, v in named_parameters(model).items()}
    shape, rest = model_shape(model)
    rows = {name: np.zeros((2, 64), np.int32) for name in ("tokens", "targets")}
    lowered = routed_pass.lower(
        shape,
        PassRoute(tuple(sorted(weights.items())), None),
        loss,
        {name: parameters[name] for name in weights},
        {name: value for name, value in parameters.items() if name not in weights},
        rest,
        row_keys(1, 0, "stream", range(2)),
        rows,
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
    assert groups["block.1"][0] == "blocks.1.attention_norm.scale"
    named = layer_groups(model, {"attention": ["blocks.*.attention.*"]})
    assert [*named][-1] == "attention"
    assert len(named["attention"]) == 4


class Tied(nnx.Module):
    """Its embedding is its head."""

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


def test_a_model_without_a_head_reads_its_embedding_as_one() -> None:
    assert [*layer_groups(Tied())] == ["embedding+head", "block.0"]


@pytest.mark.parametrize(
    ("model", "says"),
    [(Counting, "changed variable calls"), (Drawing, "changed variable rngs")],
)
def test_state_that_classes_would_share_is_refused(model: type[Tied], says: str) -> None:
    step = tiny_step(model(), TIED)
    before = digests(step)
    with pytest.raises(Refused, match=says):
        step(first(TIED), loss)
    assert digests(step) == before


def test_what_is_in_no_group_is_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"early\.\w+ is in no layer group"):
        layer_groups(Tied(extra=True))
    groups = layer_groups(Tied(extra=True), {"early": ["early.*"]})
    assert groups["early"] == ("early.kernel", "early.bias")


def test_an_optimizer_that_mixes_parameters_is_refused() -> None:
    for fine in (ADAMW, optax.sgd(0.1, momentum=0.9), optax.lion(1e-3)):
        require_separable(fine)
    with pytest.raises(Refused, match="gradients of others"):
        require_separable(optax.chain(optax.clip_by_global_norm(1.0), ADAMW))


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


@pytest.mark.parametrize(
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


def test_a_credential_that_has_expired_stops_the_step() -> None:
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    terms = Terms(
        policy_digest=DIGEST,
        plan_digest=plan(OPEN).digest,
        corpora=("open",),
        clock=lambda: noon.timestamp(),
        valid_until={"credential open": noon},
    )
    step = tiny_step(Tiny(), OPEN, terms=terms)
    with pytest.raises(NoLongerValid, match="credential open expired"):
        step(first(OPEN), loss)
    step.leave_out({"open": "credential open"})
    with pytest.raises(Refused, match="whose credential no longer holds"):
        step(first(OPEN), loss)
    assert CONTEXT == 3
