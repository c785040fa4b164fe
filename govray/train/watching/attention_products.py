"""The products of a model's forward pass that no weight takes part in: attention's two, above all.

Parameters do not show them. So the forward pass of one row runs on tensors without memory, and each
batched product is seen as it is dispatched. Fused attention is its products there. A batched
product with weights, as some mixtures of experts have, is counted with the weights.

Every position is counted, also those that a causal mask leaves out: 4·T²·width a block and row.

Not covered: a model that takes more than token ids, or that reads a tensor's value in its forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from govray.engine.model.compiled_blocks import without_graphs
from govray.train.watching.flops import Operation

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
