"""A governed step over JAX, with all that it works with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import optax
from flax import nnx

from govray.engine.jax.flax_framework import FlaxFramework
from govray.engine.jax.layer_groups import layer_groups
from govray.engine.jax.lora import first_pairs
from govray.engine.steps.first_exchange import Terms
from govray.engine.steps.routed_step import RoutedStep
from govray.governance.policy.route import Route


def build_step(
    model: nnx.Module,
    optimizer: optax.GradientTransformation,
    *,
    routes: Mapping[str, Route],
    terms: Terms,
    groups: Mapping[str, Sequence[str]] | None = None,
    alternatives: Mapping[str, Collection[str]] = MappingProxyType({}),
    seed: int = 17,
    clip_norm: float | None = 1.0,
    max_rows: int | None = None,
) -> RoutedStep:
    """A governed step over a Flax model. Collective.

    Args:
        model: Equal on all ranks. A step puts new weights into it.
        optimizer: It is given one layer group at a time, as a flat mapping of names to arrays.
        routes: Stream id → route, of every class that was admitted, alternatives included.
        terms: What the run's steps rest on: policy, plan, corpora, and how long each holds.
        groups: Layer group → FQNs; by default those of `layer_groups`.
        alternatives: Stream id → digests of the other routes that its rows may take: those of
            later phases, and of a gate's fallback.
        seed: Of dropout and of the adapters' first weights.
        clip_norm: Largest gradient norm of a domain; None does not clip.
        max_rows: Rows that go through the model together; None for all of a route.

    Raises:
        Refused: The model or the optimizer can't be routed exactly, a route does not fit, a
            parameter escapes governance, or ranks hold different set-ups.
    """
    ranks = {each.adapter: each.rank for each in routes.values() if each.adapter and each.rank}
    adapters = first_pairs(model, ranks, seed)
    whole = dict(layer_groups(model) if groups is None else groups)
    for name in adapters:
        group = name.partition("/")[0]
        whole[group] = (*whole.get(group, ()), name)
    framework = FlaxFramework(model, adapters, whole, optimizer, seed)
    shapes = {n: [list(p.shape), str(p.dtype)] for n, p in framework.parameters().items()}
    return RoutedStep(
        framework,
        groups=whole,
        routes=routes,
        terms=terms,
        alternatives=alternatives,
        setup={"parameters": shapes, "seed": seed},
        clip_norm=clip_norm,
        max_rows=max_rows,
    )
