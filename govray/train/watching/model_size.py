"""How large a run is, before it starts: parameters, memory of a rank, tokens, FLOPs.

Everything follows from the model on the meta device, the batch plan and the settings. Nothing is
allocated and no data is read.

* **Memory** is that of weights, gradients and the optimizer's state. A run that keeps an average
  needs four bytes more for each weight of the base model that learns. Activations, buffers of the
  reduction and the framework come besides. ``fsdp2`` deals the base model over the ranks; adapters
  are whole on each.
* **Tokens** are the rows of the plan times their loss targets, so at most.
* **FLOPs** are those of `govray.train.watching.flops`, with each weight matrix as one product, and
  attention's two products a block (`flops.py`). Rows of images have none, for how
  often their weights are used does not show in the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature, unwrap
from typing import Any

import torch
from torch import nn

from govray.engine.model.adapters import adapted_layers, is_conv1d
from govray.engine.startup.optimizer_kinds import without_compiler
from govray.governance.policy.route import ADAPTER, Route
from govray.governance.record.batch_plan import BatchPlan, StreamPlan
from govray.train.watching.flops import Operation, attention_products, row_flops

AVERAGE_BYTES = 4
"""Of an averaged weight: float32 whatever the precision (`govray.train.state.weight_average`)."""

_SIDE = 64
"""Rows and columns of the matrix that an optimizer is tried on."""


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """How large a run is.

    Attributes:
        parameters: Of the model and its adapters.
        trainable: Those of them that some route updates.
        weight_bytes, gradient_bytes: Of one rank, at most.
        optimizer_bytes: Likewise; None if the optimizer could not be tried.
        average_bytes: Of the weights' average, likewise; 0 if the run keeps none.
        commit_bytes: Of weights, optimizer and average as a checkpoint has them, of all ranks.
        tokens: Loss targets of the plan, at most.
        flops: Of all steps and ranks; None for rows without a known number of products.
        attention: Whether products without weights are among them; not if the model's forward could
            not be tried.
        ratio: The same divided by those of plain training on the same rows.
    """

    steps: int
    parameters: int
    trainable: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int | None
    average_bytes: int
    commit_bytes: int
    tokens: int
    flops: float | None
    attention: bool
    ratio: float | None

    @property
    def rank_bytes(self) -> int:
        """Weights, gradients, optimizer and average of one rank."""
        optimizer = self.optimizer_bytes or 0
        return self.weight_bytes + self.gradient_bytes + optimizer + self.average_bytes

    @property
    def text(self) -> str:
        without = " without the optimizer" if self.optimizer_bytes is None else ""
        parts = [
            f"{_short(self.parameters)} parameters, {_short(self.rank_bytes)}B a rank{without}",
            f"{_short(self.tokens)} tokens",
        ]
        if self.flops is not None and self.ratio is not None:
            apart = "" if self.attention else " without attention"
            parts.append(f"{self.flops:.1e} FLOPs{apart} ({self.ratio:.2f} of ungoverned)")
        return " · ".join(parts).replace("e+", "e")

    def to_json(self) -> dict[str, Any]:
        """For machines; sizes in bytes."""
        return {
            "steps": self.steps,
            "parameters": self.parameters,
            "trainable": self.trainable,
            "bytesPerRank": {
                "weights": self.weight_bytes,
                "gradients": self.gradient_bytes,
                "optimizer": self.optimizer_bytes,
                "average": self.average_bytes,
            },
            "tokens": self.tokens,
            "flops": self.flops,
            "attentionCounted": self.attention,
            "flopRatio": self.ratio,
        }


def model_size(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    groups: Mapping[str, Sequence[str]],
    plan: BatchPlan,
    routes: Mapping[str, Route],
    *,
    shards: int = 1,
    text: bool = True,
    averaged: bool = False,
) -> ModelSize:
    """The size of a run.

    Args:
        model: On the meta device; on another, attention's products are not counted.
        routes: Stream id → route, of streams that read anything.
        shards: How many ranks share the base model.
        text: Whether a weight matrix is applied once to each loss target.
        averaged: Whether the run keeps an average of the base model's weights.
    """
    parameters = dict(model.named_parameters())
    group_of = {fqn: group for group, fqns in groups.items() for fqn in fqns}
    reached = {group for route in routes.values() for group in route.groups}
    permitted = [p for fqn, p in parameters.items() if group_of[fqn] in reached]
    layers = adapted_layers(model)
    ranks = {r.adapter: r.rank for r in routes.values() if r.adapter and r.rank}
    adapted, adapted_bytes = _adapter_size(layers, sum(ranks.values()))
    whole, moved = sum(map(_bytes, parameters.values())), sum(map(_bytes, permitted))
    mean = AVERAGE_BYTES * sum(map(_learning, parameters.values())) if averaged else 0
    gradients = -(-moved // shards) + adapted_bytes
    share = _state_share(optimizer) if optimizer else None
    rows = {s.id: _rows(s, plan, plan.max_steps) for s in plan.streams if s.id in routes}
    flops, ratio, without_weights = None, None, None
    if text and any(rows.values()):
        places = {id(each): 2 * n for n, each in enumerate(_weights(model))}
        without_weights = attention_products(model, places, plan.context)
        base = [*_operations(model, group_of, plan.context), *(without_weights or ())]
        plain = 3 * sum(each.flops for each in base)
        flops = sum(
            count * row_flops([*base, *_adapter_operations(layers, places, route, plan)], route)
            for stream in plan.streams
            if stream.id in routes
            for count, route in _by_phase(stream, plan, routes[stream.id])
        )
        ratio = flops / (plain * sum(rows.values())) if plain else None
    return ModelSize(
        steps=plan.max_steps,
        parameters=sum(p.numel() for p in parameters.values()) + adapted,
        trainable=sum(p.numel() for p in permitted) + adapted,
        weight_bytes=-(-whole // shards) + adapted_bytes,
        gradient_bytes=gradients,
        optimizer_bytes=None if share is None else round(share * gradients),
        average_bytes=-(-mean // shards),
        commit_bytes=whole + mean + adapted_bytes + round((share or 0) * (moved + adapted_bytes)),
        tokens=sum(rows.values()) * plan.context,
        flops=flops,
        attention=without_weights is not None,
        ratio=ratio,
    )


def _by_phase(stream: StreamPlan, plan: BatchPlan, route: Route) -> Iterator[tuple[int, Route]]:
    """(Rows, what they update) of each phase of a stream's route."""
    starts = [step for step, _ in route.by_phase]
    read = [_rows(stream, plan, stop) for stop in (*starts[1:], plan.max_steps)]
    for before, after, (_, phase) in zip([0, *read], read, route.by_phase, strict=False):
        yield after - before, phase


def _rows(stream: StreamPlan, plan: BatchPlan, stop: int) -> int:
    """Rows that the plan reads of a stream before a step; of one with tombstones, as many as their
    share."""
    if not stream.n:
        return 0
    readings = max(0, -(-(stop - stream.phase) // stream.every))
    kept = sum(c.drawn for c in stream.corpora if c.corpus not in plan.excluded)
    return round(min(readings * stream.quota, stream.length) * kept / stream.n)


def _weights(model: nn.Module) -> Iterator[nn.Parameter]:
    """Every parameter where a module holds it, in the order of definition; a tied one twice."""
    for module in model.modules():
        yield from module.parameters(recurse=False)


def _operations(model: nn.Module, group_of: Mapping[str, str], tokens: int) -> list[Operation]:
    """The products of one row with the model's matrices. Odd places are for adapters."""
    names = {parameter: fqn for fqn, parameter in model.named_parameters()}
    tables = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    }
    found: list[Operation] = []
    for parameter in _weights(model):
        looked_up = id(parameter) in tables
        tables.discard(id(parameter))  # a tied one is a matrix where it stands again
        product = parameter.dim() >= 2 and not looked_up
        flops = 2.0 * tokens * parameter.numel() if product else 0.0
        found.append(Operation(2 * len(found), group_of[names[parameter]], flops))
    return found


def _adapter_operations(
    layers: Mapping[str, nn.Module], places: Mapping[int, int], route: Route, plan: BatchPlan
) -> Iterator[Operation]:
    """The two products of each layer that the route's adapter adapts."""
    if not route.adapter or not route.rank:
        return
    for layer in layers.values():
        for step, size in enumerate(_sides(layer)):
            yield Operation(
                places[id(layer.weight)] + step,
                f"{ADAPTER}{route.adapter}",
                2.0 * plan.context * route.rank * size,
            )


def _adapter_size(layers: Mapping[str, nn.Module], ranks: int) -> tuple[int, int]:
    """(Weights, bytes) of adapters whose ranks add up to this."""
    weights = bytes_ = 0
    for layer in layers.values():
        own = ranks * sum(_sides(layer))
        weights += own
        bytes_ += own * layer.weight.element_size()  # type: ignore[operator]
    return weights, bytes_


def _sides(layer: nn.Module) -> tuple[int, int]:
    """Inputs and outputs of a linear layer."""
    weight: Any = layer.weight
    outputs, inputs = reversed(weight.shape) if is_conv1d(layer) else weight.shape
    return int(inputs), int(outputs)


def _bytes(parameter: nn.Parameter) -> int:
    return parameter.numel() * parameter.element_size()


def _learning(parameter: nn.Parameter) -> int:
    """Numbers of a parameter that an average is kept of."""
    learns = parameter.requires_grad and parameter.is_floating_point()
    return parameter.numel() if learns else 0


def _state_share(optimizer: torch.optim.Optimizer) -> float | None:
    """Bytes of an optimizer's state for each byte of a gradient, from a step with one matrix.
    None if such an optimizer can't be made from its settings, or does not step."""
    first = optimizer.param_groups[0]
    example = first["params"][0]
    weight = nn.Parameter(torch.zeros(_SIDE, _SIDE, dtype=example.dtype))
    weight.grad = torch.zeros_like(weight)
    try:
        known = signature(type(optimizer)).parameters
        settings = {name: value for name, value in first.items() if name in known}
        with without_compiler(), torch.no_grad():
            tried = type(optimizer)(**settings | {"params": [weight]})
            # As the class has it: torch's wrappers would import the compiler.
            unwrap(type(tried).step)(tried)
        state = [each for each in tried.state[weight].values() if isinstance(each, torch.Tensor)]
    except Exception:  # an optimizer of the user's own; only this figure is lost
        return None
    held = sum(each.numel() * each.element_size() for each in state if each.numel() > 1)
    return held / _bytes(weight)


def _short(number: float) -> str:
    """Two or three digits and a unit: ``812 k``, ``1.3 M``, ``70 G``."""
    for unit in ("", "k", "M", "G", "T"):
        if number < 999.5 or unit == "T":
            break
        number /= 1000
    return f"{number:.1f} {unit}" if unit and number < 9.95 else f"{number:.0f} {unit}"
