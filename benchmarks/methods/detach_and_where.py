"""Gradient routing inside the forward pass, exact for layer groups.

Published gradient-routing code keeps or detaches each row of a layer's output by a
mask. To let gradients pass *through* a layer that a row may not update, its
parameters have to be detached and not its output. So every layer group runs twice,
with its parameters and with detached ones, and each row takes the result that its
route permits:

    hidden  =  where(permitted[row], group(hidden), group_detached(hidden))

An adapter is added by ``where`` too.

Source: Cloud et al. 2024, "Gradient Routing: Masking Gradients to Localize
Computation in Neural Networks", for the masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.cases import ADAPTER_NAME, ADAPTER_RANK
from benchmarks.methods.lora import RowLora
from benchmarks.methods.masked import MaskedForward, stages, union
from govray.engine.model.gpt import GPT
from govray.governance.policy.route import Route


class DetachAndWhere(MaskedForward):
    """Every layer group runs twice."""

    def build(self) -> tuple[nn.Module, Mapping[str, nn.Parameter]]:
        """Both parameters and adapter sit in one module, for DDP."""
        model = self.workload.build_model()
        parameters = dict(model.named_parameters())
        lora = RowLora(model, ADAPTER_NAME, ADAPTER_RANK) if self.workload.adapter else None
        if lora:
            parameters |= lora.named_parameters()
        return TwiceGPT(model, lora, self.workload.routes), parameters


class TwiceGPT(nn.Module):
    """The built-in GPT, with parameters detached row by row.

    Args:
        model: Its groups run one after another.
        lora: The adapter, if there is one.
        routes: Profile → route.
    """

    def __init__(self, model: GPT, lora: RowLora | None, routes: Mapping[str, Route]) -> None:
        super().__init__()
        self.model = model
        self._lora = lora
        # Registered here, so that DDP sees the adapter's parameters.
        self.adapter = nn.ParameterList(lora.named_parameters().values() if lora else ())
        self._routes = dict(routes)

    def forward(self, tokens: Tensor, masks: Mapping[str, Tensor]) -> Tensor:
        """Logits of (rows, tokens)."""
        hidden = tokens
        for group, module in stages(self.model):
            hidden = self._routed(group, module, hidden, masks)
        return hidden

    def _routed(
        self, group: str, module: nn.Module, inputs: Tensor, masks: Mapping[str, Tensor]
    ) -> Tensor:
        permitting = [p for p, route in self._routes.items() if group in route.groups]
        others = [p for p in self._routes if p not in permitting]
        with self._adapted(permitting, masks):
            live = module(inputs)
        frozen = {name: parameter.detach() for name, parameter in module.named_parameters()}
        with self._adapted(others, masks):
            detached = functional_call(module, frozen, (inputs,))
        return torch.where(union(masks, permitting).view(-1, 1, 1), live, detached)

    def _adapted(
        self, profiles: list[str], masks: Mapping[str, Tensor]
    ) -> AbstractContextManager[None]:
        """The adapter, for the rows of those of these profiles that read it."""
        readers = [p for p in profiles if self._routes[p].adapter]
        if self._lora is None or not readers:
            return nullcontext()
        return self._lora.active(union(masks, readers))
