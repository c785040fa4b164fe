"""Gradient routing inside the forward pass, exact for layer groups, as people write it by hand.

Published gradient-routing code keeps or detaches each row of a layer's output by a
mask. To let gradients pass *through* a layer that a row may not update, its
parameters have to be detached and not its output. So every layer group runs twice,
with its parameters and with detached ones, and each row takes the result that its
route permits:

    hidden  =  where(permitted[row], group(hidden), group_detached(hidden))

An adapter is added by ``where`` too. All parameters are in the graph of every step, so plain DDP
can host them, with its overlap. The counts N_l come from the case, at no cost.

Source: Cloud et al. 2024, "Gradient Routing: Masking Gradients to Localize
Computation in Neural Networks", for the masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.batch import Batch
from benchmarks.cases import ADAPTER_NAME, ADAPTER_RANK, SEED
from benchmarks.methods.method import Method
from benchmarks.workload import Workload
from govray.engine.model.adapters import ALPHA_PER_RANK, adapted_layers, first_weight
from govray.engine.model.gpt import GPT
from govray.governance.policy.route import Route


class DetachAndWhere(Method):
    """Every layer group runs twice."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        model = workload.build_model()
        parameters = dict(model.named_parameters())
        lora = RowLora(model) if workload.adapter else None
        if lora:
            parameters |= lora.named_parameters()
        self.optimize(parameters)
        self._module = DistributedDataParallel(TwiceGPT(model, lora, workload.routes))

    def step(self, batch: Batch) -> None:
        """Masked forward, one backward, each group's gradient divided by its own count."""
        masks = {}
        for profile, span in batch.spans.items():
            masks[profile] = torch.zeros(
                len(batch.tokens), dtype=torch.bool, device=batch.tokens.device
            )
            masks[profile][span] = True
        losses = self.workload.losses(
            lambda tokens: self._module(tokens, masks),
            {"tokens": batch.tokens, "targets": batch.targets},
        )
        losses.mean().backward()
        # DDP has computed the mean over all rows of all ranks.
        total = self.workload.world_size * losses.numel()
        for name, parameter in self.parameters.items():
            count = self.workload.group_targets[self.workload.group_of(name)]
            if count != total and parameter.grad is not None:
                parameter.grad *= total / count
        self.optimizer.step()
        self.optimizer.zero_grad()


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
        hidden = self._routed("embedding", self.model.embedding, tokens, masks)
        for index, block in enumerate(self.model.blocks):
            hidden = self._routed(f"block.{index}", block, hidden, masks)
        hidden = self._routed("final_norm", self.model.final_norm, hidden, masks)
        return self._routed("head", self.model.head, hidden, masks)

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
        return torch.where(_union(masks, permitting).view(-1, 1, 1), live, detached)

    def _adapted(
        self, profiles: list[str], masks: Mapping[str, Tensor]
    ) -> AbstractContextManager[None]:
        """The adapter, for the rows of those of these profiles that read it."""
        readers = [p for p in profiles if self._routes[p].adapter]
        if self._lora is None or not readers:
            return nullcontext()
        return self._lora.active(_union(masks, readers))


class RowLora:
    """The engine's adapter beside a model, with a mask over rows.

    The tensors have the engine's names and first values. Outside ``active`` nothing is added to a
    layer's output.
    """

    def __init__(self, model: nn.Module) -> None:
        self.pairs: dict[str, tuple[nn.Parameter, nn.Parameter]] = {}
        for fqn, layer in adapted_layers(model).items():
            assert isinstance(layer, nn.Linear)  # the built-in GPT has no other kind of layer
            weight = layer.weight
            a = first_weight(SEED, ADAPTER_NAME, fqn, ADAPTER_RANK, layer.in_features, weight.dtype)
            b = weight.new_zeros(layer.out_features, ADAPTER_RANK)
            self.pairs[fqn] = nn.Parameter(a.to(weight.device)), nn.Parameter(b)
            layer.register_forward_hook(self._hook(fqn))
        self._mask: Tensor | None = None

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """By the engine's names."""
        return {
            f"adapter:{ADAPTER_NAME}/{fqn}.{part}.weight": parameter
            for fqn, pair in self.pairs.items()
            for part, parameter in zip(("lora_A", "lora_B"), pair, strict=True)
        }

    @contextmanager
    def active(self, mask: Tensor) -> Iterator[None]:
        """Add the adapter to the rows where ``mask`` (rows,) is true."""
        self._mask = mask
        try:
            yield
        finally:
            self._mask = None

    def _hook(self, fqn: str) -> Callable[..., Tensor | None]:
        def add(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            if self._mask is None:
                return None
            a, b = self.pairs[fqn]
            added = F.linear(ALPHA_PER_RANK * F.linear(args[0], a), b)
            return output + torch.where(self._mask.view(-1, 1, 1), added, 0.0)

        return add


def _union(masks: Mapping[str, Tensor], profiles: list[str]) -> Tensor:
    """Rows of any of these profiles; at least one is given."""
    return torch.stack([masks[profile] for profile in profiles]).any(0)
