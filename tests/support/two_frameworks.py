"""One tiny GPT in torch and in Flax, with the same weights, and the same rows for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from unittest.mock import patch

import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx
from torch import Tensor
from torch.nn import functional as F

from govray.engine.jax import build_step
from govray.engine.jax.gpt import FlaxGPT
from govray.engine.jax.named_parameters import named_parameters
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT
from govray.engine.steps.batch import IGNORED, MicroBatch, StepBatch
from govray.engine.steps.first_exchange import Terms
from govray.engine.steps.routed_step import RoutedStep
from govray.governance.policy.route import Route
from tests.support.cases import CORPUS, PLAN, POLICY

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
