"""Gradients by their definition, one row at a time; and those that an optimizer sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from govray.engine.batch import IGNORED
from govray.engine.model.adapters import Adapters
from govray.governance.policy.route import Route

Gradients = dict[str, Tensor | None]


def seen_by(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> Gradients:
    """Filled with the gradients that it sees in each step; None where there are none."""
    seen: Gradients = {}

    def look(*_: object) -> None:
        seen.update({n: None if p.grad is None else p.grad.clone() for n, p in parameters.items()})

    optimizer.register_step_pre_hook(look)
    return seen


@dataclass(frozen=True)
class Expected:
    """What a step has to compute. ``counts``: loss targets of each layer group."""

    gradients: Gradients
    counts: dict[str, int]
    loss: float


def by_definition(
    model: nn.Module,
    rows: Iterable[tuple[Route, Mapping[str, Tensor]]],
    loss_fn: Callable[[nn.Module, Mapping[str, Tensor]], Tensor],
    group_of: Callable[[str], str],
    adapters: Adapters | None = None,
    *,
    merged: bool = True,
) -> Expected:
    """A whole backward for each row, with W + 2BA where its adapter has a pair; then a mask on
    finished gradients, their sum, and one division.

    Args:
        rows: Some of a route each time; a route may come again.
        group_of: Name of a parameter, adapters' included → its layer group.
        merged: Whether W + 2BA is one weight; else it is added as the engine does, and so rounded.
    """
    pairs = dict(adapters.named_parameters()) if adapters else {}
    everything = {**dict(model.named_parameters()), **pairs}
    sums = {name: torch.zeros_like(p) for name, p in everything.items()}
    counts = {group_of(name): 0 for name in everything}
    total, targets = 0.0, 0
    for route, tensors in rows:
        weights = dict(route.weights) | ({f"adapter:{route.adapter}": 1.0} if route.adapter else {})
        for index in range(len(tensors["targets"])):
            row = {name: tensor[index : index + 1] for name, tensor in tensors.items()}
            if adapters is None or merged:
                loss = loss_fn(Merged(model, pairs, route.adapter), row).sum()
            else:
                with adapters.active(route.adapter):
                    loss = loss_fn(model, row).sum()
            found = torch.autograd.grad(loss, [*everything.values()], allow_unused=True)
            for name, gradient in zip(everything, found, strict=True):
                if gradient is not None and group_of(name) in weights:
                    sums[name] += weights[group_of(name)] * gradient
            counted = int((row["targets"] != IGNORED).sum())
            for group in weights:
                counts[group] += counted
            total, targets = total + loss.item(), targets + counted
    gradients = {
        name: each / counts[group_of(name)] if counts[group_of(name)] else None
        for name, each in sums.items()
    }
    return Expected(gradients, counts, total / targets if targets else float("nan"))


class Merged(nn.Module):
    """A model whose layers hold what an adapter adds to them."""

    def __init__(self, model: nn.Module, pairs: Mapping[str, Tensor], adapter: str | None) -> None:
        super().__init__()
        self.model, self.weights = model, dict[str, Tensor]()
        prefix, end = f"adapter:{adapter}/", ".lora_A.weight"
        for name, a in pairs.items():
            if name.startswith(prefix) and name.endswith(end):
                fqn = name.removeprefix(prefix).removesuffix(end)
                layer, update = (
                    model.get_submodule(fqn),
                    2 * pairs[f"{prefix}{fqn}.lora_B.weight"] @ a,
                )
                # GPT-2's layers hold their weight the other way round.
                turned = update if isinstance(layer, nn.Linear) else update.T
                self.weights[f"{fqn}.weight"] = layer.weight + turned

    def forward(self, *inputs: Tensor) -> Any:
        return functional_call(self.model, self.weights, inputs)
