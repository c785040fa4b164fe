"""Torch, JAX and an oracle that knows nothing of govray: the same gradients, counts and leaf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch import Tensor, nn
from torch.nn import functional as F

from govray.engine.jax import build_step
from govray.engine.jax.gpt import FlaxGPT
from govray.engine.jax.gpt import loss as flax_loss
from govray.engine.jax.named_parameters import named_parameters
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT
from govray.engine.model.gpt import loss as torch_loss
from govray.engine.steps.batch import IGNORED, MicroBatch, StepBatch
from govray.engine.steps.first_exchange import Terms
from govray.engine.steps.routed_step import RoutedStep
from govray.engine.steps.step_result import StepResult
from govray.governance.policy.route import Route
from tests.support.cases import CORPUS, PLAN, POLICY, governed, micro_batch, step_batch, token_rows
from tests.support.row_oracle import Gradients, by_definition, seen_by

BLOCKS, WIDTH, CONTEXT, VOCABULARY, HEADS, RANK = 1, 8, 5, 11, 2, 2
TERMS = Terms(policy_digest=POLICY, plan_digest=PLAN, corpora=(CORPUS,))


@dataclass(frozen=True)
class Pair:
    """A torch model with its adapters, and the Flax model with the same numbers."""

    model: GPT
    adapters: Adapters
    flax: FlaxGPT

    @property
    def torch_parameters(self) -> dict[str, Tensor]:
        return dict(self.model.named_parameters()) | dict(self.adapters.named_parameters())


def pair(
    routes: Sequence[Route], *, double: bool = False, dropout: float = 0.0, seed: int = 5
) -> Pair:
    """Weights large enough that every gradient is far above rounding."""
    torch.manual_seed(seed)
    model = GPT(BLOCKS, WIDTH, CONTEXT, VOCABULARY, heads=HEADS, dropout=dropout)
    model = model.double() if double else model
    ranks = {route.adapter: RANK for route in routes if route.adapter}
    adapters = Adapters(model, ranks, seed=seed)
    with torch.no_grad():
        for parameter in (*model.parameters(), *dict(adapters.named_parameters()).values()):
            parameter.normal_(std=0.4)
    dtype = jnp.float64 if double else jnp.float32
    # They are filled in: to draw them JAX would compile for seconds.
    with patch.object(nnx.initializers, "normal", lambda std: nnx.initializers.zeros):
        flax = FlaxGPT(
            BLOCKS,
            WIDTH,
            CONTEXT,
            VOCABULARY,
            heads=HEADS,
            dropout=dropout,
            rngs=nnx.Rngs(0),
            dtype=dtype,
        )
    fill(flax, dict(model.named_parameters()))
    return Pair(model, adapters, flax)


def fill(flax: FlaxGPT, weights: Mapping[str, Tensor]) -> None:
    """Give a Flax model a torch model's weights."""
    parameters = named_parameters(flax)
    assert {torch_name(name) for name in parameters} == weights.keys()
    for name, variable in parameters.items():
        variable.set_value(jnp.asarray(in_flax(name, weights[torch_name(name)])))


def torch_name(name: str) -> str:
    """What torch calls a parameter of Flax; an adapter's name is the same."""
    for own in (".kernel", ".scale", ".embedding"):
        if name.endswith(own):
            return name.removesuffix(own) + ".weight"
    return name


def in_flax(name: str, tensor: Tensor) -> np.ndarray:
    """A tensor of torch as Flax has it: kernels are (in, out)."""
    array = tensor.detach().numpy()
    return array.T.copy() if name.endswith(".kernel") else array.copy()


def flax_step(
    own: Pair, optimizer: optax.GradientTransformation, routes: Sequence[Route], **settings: object
) -> RoutedStep:
    """A governed step over the Flax model, its adapters with torch's weights."""
    step = build_step(
        own.flax,
        optimizer,
        routes={route.digest: route for route in routes},
        **({"terms": TERMS, "seed": 5, "clip_norm": None} | settings),
    )
    for name, tensor in own.adapters.named_parameters():
        step.framework.adapters[name] = jnp.asarray(in_flax(name, tensor))
    return step


def in_numpy(batch: StepBatch) -> StepBatch:
    return StepBatch(
        batch.step,
        tuple(
            MicroBatch(
                each.stream,
                {name: tensor.numpy() for name, tensor in each.tensors.items()},
                each.positions,
                each.row_targets,
                each.corpora,
            )
            for each in batch.micro_batches
        ),
        batch.corpora,
    )


def keeps_gradients() -> optax.GradientTransformation:
    """Moves nothing; its state is the gradients that it was last given."""
    return optax.GradientTransformation(
        lambda parameters: {name: jnp.zeros_like(p) for name, p in parameters.items()},
        lambda gradients, state, parameters: (
            {name: jnp.zeros_like(g) for name, g in gradients.items()},
            gradients,
        ),
    )


def losses_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each loss target, by torch."""
    flat = F.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), reduction="none", ignore_index=IGNORED
    )
    return flat.view(targets.shape)


ROUTES = (
    Route({"embedding": 0.5, "head": 1.0}),  # its gradient passes through the block
    Route({"block.0": 0.3, "final_norm": 1.0, "head": 0.01}),
    Route({"block.0": 0.7}, "left", RANK),
)


def rows() -> list[dict[str, Tensor]]:
    """Of each route, some without some targets."""
    found = []
    for index, count in enumerate((4, 3, 2)):
        own = token_rows(count, CONTEXT, VOCABULARY, 77, index)
        own["targets"][: index + 1, :2] = IGNORED
        found.append(own)
    return found


def batch() -> StepBatch:
    return step_batch(0, [micro_batch(r, own) for r, own in zip(ROUTES, rows(), strict=True)])


def oracle(own: Pair) -> dict[str, np.ndarray | None]:
    """Gradients by torch's names, in float64; None where a group got nothing."""

    def losses(model: nn.Module, row: Mapping[str, Tensor]) -> Tensor:
        return losses_of(model(row["tokens"]), row["targets"])

    streams = zip(ROUTES, rows(), strict=True)
    found = by_definition(own.model, streams, losses, group_of, own.adapters).gradients
    return {name: None if each is None else each.numpy() for name, each in found.items()}


def group_of(name: str) -> str:
    if name.startswith("adapter:"):
        return name.partition("/")[0]
    first, second = name.split(".")[:2]
    return f"block.{second}" if first == "blocks" else first


def flax_gradients(step: RoutedStep) -> dict[str, np.ndarray]:
    """By torch's names, in torch's layout."""
    return {
        torch_name(name): np.asarray(g).T if name.endswith(".kernel") else np.asarray(g)
        for state in step.framework.optimizer.states.values()
        for name, g in state.items()
    }


def torch_step(own: Pair) -> tuple[StepResult, dict[str, np.ndarray]]:
    parameters = own.torch_parameters
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    seen = seen_by(optimizer, parameters)
    step = governed(own.model, optimizer, ROUTES, adapters=own.adapters, tries_rows=False, seed=5)
    return step(batch(), torch_loss), arrays(seen)


def arrays(gradients: Gradients) -> dict[str, np.ndarray]:
    return {name: each.numpy() for name, each in gradients.items() if each is not None}


@dataclass(frozen=True)
class Compared:
    """What three ways made of the same rows and weights."""

    flax: dict[str, np.ndarray]
    flax_result: StepResult
    torch: dict[str, np.ndarray]
    torch_result: StepResult
    oracle: dict[str, np.ndarray | None]


def compared() -> Compared:
    with jax.enable_x64(True):
        own = pair(ROUTES, double=True, dropout=0.0)
        expected = oracle(own)
        step = flax_step(own, keeps_gradients(), ROUTES)
        result = step(in_numpy(batch()), flax_loss)
        gradients = flax_gradients(step)
    torch_result, torch_gradients = torch_step(own)
    return Compared(gradients, result, torch_gradients, torch_result, expected)


TOLERANCE = 1e-12


@pytest.fixture(scope="module")
def found() -> Compared:
    return compared()


def distances(
    one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray | None]
) -> dict[str, float]:
    """‖a − b‖ / ‖b‖ of each gradient that there is."""
    return {
        name: float(np.linalg.norm(one[name] - g) / np.linalg.norm(g))
        for name, g in other.items()
        if g is not None
    }


def test_gradients_are_the_oracles_and_torchs(found: Compared) -> None:
    assert max(distances(found.flax, found.oracle).values()) <= TOLERANCE
    assert max(distances(found.flax, found.torch).values()) <= TOLERANCE
    assert found.flax.keys() == found.torch.keys() == found.oracle.keys()


def test_counts_losses_and_norms_are_torchs(found: Compared) -> None:
    ours, theirs = found.flax_result, found.torch_result
    assert ours.group_targets == theirs.group_targets
    assert ours.corpus_counts == theirs.corpus_counts
    assert ours.loss == pytest.approx(theirs.loss, rel=TOLERANCE)
    assert ours.stream_losses == pytest.approx(dict(theirs.stream_losses), rel=TOLERANCE)
    assert ours.grad_norms == pytest.approx(dict(theirs.grad_norms), rel=TOLERANCE)


def test_a_weight_that_is_left_out_shows(found: Compared) -> None:
    """Negative control: the oracle's gradients with another weight are far away."""
    right = found.oracle["head.weight"]
    assert right is not None
    assert distances(found.flax, {"head.weight": 1.1 * right})["head.weight"] > 1e4 * TOLERANCE


def test_with_dropout_torchs_masks_are_drawn() -> None:
    alone = (ROUTES[1],)
    with jax.enable_x64(True):
        own = pair(alone, double=True, dropout=0.2)
        step = flax_step(own, keeps_gradients(), alone)
        part = micro_batch(ROUTES[1], rows()[1], first=2)
        step(in_numpy(step_batch(3, [part])), flax_loss)
        ours = flax_gradients(step)
        step(in_numpy(step_batch(4, [part])), flax_loss)
        later = flax_gradients(step)
    parameters = own.torch_parameters
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    seen = seen_by(optimizer, parameters)
    governed(own.model, optimizer, alone, tries_rows=False, seed=5)(
        step_batch(3, [part]), torch_loss
    )
    theirs = arrays(seen)
    assert max(distances(ours, theirs).values()) <= TOLERANCE
    assert min(distances(later, theirs).values()) > 1e-3  # another step, other masks
