"""The analytic FLOP ratio of a governed step to plain training.

There are B rows of T tokens. Layer l has p_l weights. A_l is the number of rows with a permitted
weight below l, and P_l the number that may update l. Then

    F  =  Σ_l 2·T·p_l·(B + |A_l| + |P_l|)  /  Σ_l 6·T·p_l·B

because a layer costs 2·T·p_l a row in the forward pass. The gradient of its input costs as much
again, but only if something below is permitted. The gradient of its weights costs as much, too. The
denominator trains every row into every layer, without adapters.

"Below" refers to single operations. The norm before a linear layer has a weight, so if both are
permitted the layer's input gradient is needed. Attention has no weights; each of its two products
costs twice its forward when its inputs need gradients. LoRA's two products run for its class alone.

Not counted: lookups, elementwise work such as norms, fused attention's recomputation and skipped
positions, the optimizer, communication.

Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", §2.1, for 6 FLOPs a weight
and token. Chowdhery et al. 2022, "PaLM", appendix B, for attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from govray.engine.model.compiled_blocks import without_graphs
from govray.governance.policy.route import ADAPTER, Route


@dataclass(frozen=True)
class Operation:
    """A matrix product in the forward pass, or a weight that makes one necessary.

    Attributes:
        place: Depth in the forward pass. An operation reads results of lower places.
        group: Layer group of its weights; None if it has none.
        flops: Forward cost of one row; 0 for what is not counted.
    """

    place: int
    group: str | None
    flops: float


def row_flops(operations: Sequence[Operation], route: Route) -> float:
    """Forward and backward FLOPs of one row of a stream."""
    permitted = frozenset(route.groups)
    entry = min((o.place for o in operations if o.group in permitted), default=None)
    total = 0.0
    for operation in operations:
        if _of_adapter(operation) and operation.group not in permitted:
            continue
        products = 1
        if entry is not None and entry < operation.place:
            products += 2 if operation.group is None else 1
        if operation.group in permitted:
            products += 1
        total += products * operation.flops
    return total


def _of_adapter(operation: Operation) -> bool:
    return operation.group is not None and operation.group.startswith(ADAPTER)


# The products of a model's forward pass that no weight takes part in: attention's two, above all.
#
# Parameters do not show them. So the forward pass of one row runs on tensors without memory, and
# each batched product is seen as it is dispatched. Fused attention is its products there. A
# batched product with weights, as some mixtures of experts have, is counted with the weights.
#
# Every position is counted, also those that a causal mask leaves out: 4·T²·width a block and row.
#
# Not covered: a model that takes more than token ids, or that reads a tensor's value in its
# forward.


_AFTER = 1
"""A product comes after the weight that was used last, and before the next one's place."""


def attention_products(
    model: nn.Module, places: Mapping[int, int], tokens: int
) -> list[Operation] | None:
    """The products of one row; None if the forward pass can't be run with token ids alone.

    Args:
        model: On the meta device. It stays as it is.
        places: id of a parameter → its depth in the forward pass, each at least two apart.
    """
    try:
        with (
            torch.random.fork_rng(devices=[]),
            torch.no_grad(),
            without_graphs(),
            FakeTensorMode(allow_non_fake_inputs=True),
            _following(places) as used,
            _Products(model, used) as found,
            torch.device("meta"),
        ):
            model(torch.zeros(1, tokens, dtype=torch.int64))
    except Exception:  # of a model of the user's own; only this figure is lost
        return None
    return found.operations


class _Products(TorchDispatchMode):
    """Keeps every batched product, with the depth at which it stood."""

    def __init__(self, model: nn.Module, used: Sequence[int]) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self._used = used
        shapes = {tuple(p.shape) for p in model.parameters() if p.dim() == 3}
        self._weights = shapes | {(n, b, a) for n, a, b in shapes}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func.overloadpacket in (torch.ops.aten.bmm, torch.ops.aten.baddbmm):
            left, right = args[-2:]
            if not {tuple(left.shape), tuple(right.shape)} & self._weights:
                flops = 2.0 * left.numel() * right.shape[-1]
                self.operations.append(Operation(self._used[-1] + _AFTER, None, flops))
        return func(*args, **(kwargs or {}))


@contextmanager
def _following(places: Mapping[int, int]) -> Iterator[list[int]]:
    """Inside, the last of the list is the depth of the module with weights that ran last."""
    used = [-1]

    def entered(module: nn.Module, args: Any) -> None:
        own = [places[id(each)] for each in module.parameters(recurse=False)]
        if own:
            used.append(max(own))

    before: Callable[..., Any] = nn.modules.module.register_module_forward_pre_hook
    handle = before(entered)
    try:
        yield used
    finally:
        handle.remove()
