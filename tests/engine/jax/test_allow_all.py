"""A policy that allows everything, against plain loops of JAX: which have the same bits."""

from __future__ import annotations

import jax
import optax
from flax import nnx

from govray.engine.jax.gpt import loss
from govray.engine.jax.named_parameters import named_parameters
from tests.support.tiny_flax import EVERYTHING, Tiny, digest, plan, read, tiny_step

OPEN = {"open": EVERYTHING}
STEPS = 3
MOMENTUM = optax.sgd(0.1, momentum=0.9)

Digests = list[dict[str, str]]


def digests(model: nnx.Module) -> dict[str, str]:
    return {name: digest(v.get_value()) for name, v in named_parameters(model).items()}


def sums(model: nnx.Module, tensors: dict[str, jax.Array]) -> nnx.State:
    return nnx.grad(lambda model: loss(model, tensors).sum())(model)


def update(optimizer: nnx.Optimizer, model: nnx.Module, gradients: nnx.State) -> None:
    optimizer.update(model, gradients)


def plain() -> Digests:
    """SHA-256 of all weights after each step of the plain loop."""
    of_rows, move = nnx.jit(sums), nnx.jit(update)
    model = Tiny(dropout=0.0)
    optimizer = nnx.Optimizer(model, MOMENTUM, wrt=nnx.Param)
    found = []
    for at in range(STEPS):
        (part,) = read(plan(OPEN), at, 0, 1).micro_batches
        total, targets = of_rows(model, dict(part.tensors)), part.targets
        move(optimizer, model, jax.tree.map(lambda g, n=targets: g / n, total))
        found.append(digests(model))
    return found


def governed() -> Digests:
    model = Tiny(dropout=0.0)
    step = tiny_step(model, OPEN, MOMENTUM, clip_norm=None)
    found = []
    for at in range(STEPS):
        step(read(plan(OPEN), at, 0, 1), loss)
        found.append(digests(model))
    return found


def test_it_has_the_bits_of_the_loop_of_two_compiled_functions() -> None:
    assert governed() == plain()
