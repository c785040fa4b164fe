"""LoRA adapters that live beside a model, one per removable class.

An adapter adds ``(alpha / r) · B A x`` to the output of every ``nn.Linear``, and of transformers'
``Conv1D``, inside the model's repeated blocks. The head and the embedding stay bare. The tensors
are held here, not in the model, so its ``state_dict`` and FQNs are those of the plain model. To
remove an adapter is to drop its tensors.

Why not peft's own layers: they replace the model's, which renames the base tensors
(``….base_layer.weight``), and draw first weights from the shared generator.

Invariants:

* Without an active adapter the forward is bit for bit that of the plain model. It has no hook of
  ours, and no layer's forward is overridden. So graphs that ``torch.compile`` makes of it are those
  of a model without adapters. With a hook in them inductor fused, and rounded, in another way.
* With one, nothing runs as a graph: torch does not look whether a graph knows of the hooks.
* At most one adapter is active, and only code inside ``active(name)`` reads it.
* An adapter's first weights depend on (seed, adapter name, module FQN) and the layer's shape alone.
  Other adapters, their order and shared generators play no part.
* ``alpha`` is twice the rank, so the scale is 2 whatever the rank.

With an active adapter, frozen layers compute layer and adapter as one operation (`adapted_linear`).
A forward hook adds the adapter's output to other layers. The numbers are the same.

Backward needs no active adapter, except under activation checkpointing, which
runs the forward again: keep backward inside ``active`` then. Outside, torch finds
that the recomputed forward saves other tensors, and raises.

Only these two kinds of layer take an adapter. Adapters are not stacked, and their input has no
dropout.

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models";
the layout of exported files is that of the peft library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from govray.engine.model.compiled_blocks import without_graphs
from govray.engine.steps.keyed_seed import adapter_seed
from govray.errors import Malformed, UsageError

ALPHA_PER_RANK = 2
_SCALE = float(ALPHA_PER_RANK)
PEFT_PREFIX = "base_model.model."
"""What peft writes before the FQN of a layer."""


def adapted_layers(model: nn.Module) -> dict[str, nn.Module]:
    """FQN → layer, for every linear layer beneath an ``nn.ModuleList`` of the model.
    Subclasses are left out: they may compute something that ``B A x`` does not fit."""
    lists = [fqn for fqn, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    return {
        fqn: module
        for fqn, module in model.named_modules()
        if (type(module) is nn.Linear or is_conv1d(module))
        and any(fqn.startswith(f"{parent}.") for parent in lists)
    }


def _what_is_missing(model: nn.Module) -> tuple[str, str]:
    """Why no layer of a model takes an adapter, and what to do."""
    inside = {
        fqn: module
        for parent, parts in model.named_modules()
        if isinstance(parts, nn.ModuleList)
        for fqn, module in parts.named_modules(prefix=parent)
        if not isinstance(module, nn.ModuleList)
    }
    for fqn, module in model.named_modules():
        if _is_quantised(module):
            kind = f"{type(module).__module__}.{type(module).__qualname__}"
            return f"{fqn} ({kind}) is quantised", "Load the model's full weights"
    for fqn, module in inside.items():
        if isinstance(module, nn.Linear):
            return (
                f"{fqn} is a {type(module).__name__}, and a subclass of nn.Linear may compute "
                "something that an adapter does not fit",
                "Use nn.Linear itself",
            )
    kinds = sorted({type(each).__name__ for each in inside.values() if [*each.parameters(False)]})
    if not kinds:
        return "no nn.ModuleList has parameters", "Keep the repeated blocks in an nn.ModuleList"
    return (
        f"the model's nn.ModuleLists hold no linear layer, but {', '.join(kinds)}, and adapters "
        "are built for nn.Linear alone",
        "Let a block have a linear layer",
    )


def _is_quantised(module: nn.Module) -> bool:
    """Whether it holds weights as integers, or as torch packs them."""
    if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.nn.quantized")):
        return True
    held = (*module._parameters.values(), *module._buffers.values())
    integers = (torch.int8, torch.uint8, torch.int32)
    return any(
        each is not None and each.dim() > 1 and each.dtype in integers for each in held
    ) and not any(each is not None and each.is_floating_point() and each.dim() > 1 for each in held)


def is_conv1d(module: nn.Module) -> bool:
    """Whether this is transformers' ``Conv1D``: a linear layer whose weight is (in, out).
    Known by its class name and attributes, so that nothing here imports transformers."""
    weight = getattr(module, "weight", None)
    return (
        type(module).__name__ == "Conv1D"
        and isinstance(weight, Tensor)
        and weight.dim() == 2
        and weight.shape[1] == getattr(module, "nf", None)
    )


def first_weight(
    seed: int, name: str, fqn: str, rank: int, in_features: int, dtype: torch.dtype
) -> Tensor:
    """The A matrix that an adapter starts from, of shape (rank, in_features), on the CPU. Uniform
    in ±1/√in_features, drawn in float32 from a generator keyed by all arguments but the dtype."""
    generator = torch.Generator().manual_seed(adapter_seed(seed, name, fqn))
    bound = in_features**-0.5
    weight = torch.empty(rank, in_features, dtype=torch.float32)
    return weight.uniform_(-bound, bound, generator=generator).to(dtype)


def _first_pair(
    layer: nn.Module, seed: int, name: str, fqn: str, rank: int
) -> tuple[nn.Parameter, nn.Parameter]:
    """A as ``first_weight`` draws it, and B = 0, of the dtype and on the device of the layer."""
    weight = cast(Tensor, layer.weight)
    inputs, outputs = weight.shape if is_conv1d(layer) else reversed(weight.shape)
    a = first_weight(seed, name, fqn, rank, inputs, weight.dtype).to(weight.device)
    # Not like the layer's weight, which may be a shard of itself.
    b = torch.zeros(outputs, rank, dtype=weight.dtype, device=weight.device)
    return nn.Parameter(a), nn.Parameter(b)


def peft_config(rank: int, layers: Iterable[str], *, transposed: bool) -> dict[str, Any]:
    """The content of an adapter's ``adapter_config.json``, as peft reads it.
    ``transposed``: whether their weights are (in, out) and peft has to know."""
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": ALPHA_PER_RANK * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": transposed,
        "target_modules": sorted(layers),
    }


class Adapters:
    """All adapters of one model.

    Args:
        model: While an adapter is active its layers have hooks; its parameters are untouched.
        ranks: Adapter name → rank, at least 1.
    """

    def __init__(self, model: nn.Module, ranks: Mapping[str, int], *, seed: int) -> None:
        layers = adapted_layers(model)
        if ranks and not layers:
            what, do = _what_is_missing(model)
            raise UsageError(
                f"{what}, so there is nothing to adapt",
                where=type(model).__name__,
                do=f"{do}, or use a profile without adapter",
            )
        for name, rank in ranks.items():
            if rank < 1:
                raise UsageError(f"rank {rank}", where=f"adapter {name}", do="Give at least 1")
        self.ranks = dict(ranks)
        self._active: str | None = None
        self._has_hooks = False
        self._layers = layers if ranks else {}
        self._whole: Tensor | None = None  # the output that holds the adapter's part already
        self._transposed = any(is_conv1d(layer) for layer in layers.values())
        self._pairs: dict[str, dict[str, tuple[nn.Parameter, nn.Parameter]]] = {
            name: {fqn: _first_pair(layer, seed, name, fqn, rank) for fqn, layer in layers.items()}
            for name, rank in self.ranks.items()
        }

    def _hook(self, fqn: str) -> Callable[..., Tensor | None]:
        def add(
            layer: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor], output: Tensor
        ) -> Tensor | None:
            if self._active is None:
                return None
            if output is self._whole:
                self._whole = None
                return None
            a, b = self._pairs[self._active][fqn]
            (inputs,) = args or kwargs.values()
            return added(output, inputs, a, b, _SCALE)

        return add

    def _forward(self, fqn: str, layer: nn.Module) -> Callable[..., Tensor]:
        """What stands in for the layer's forward while an adapter is active."""

        def forward(*args: Tensor, **kwargs: Tensor) -> Tensor:
            (inputs,) = args or kwargs.values()
            a, b = self._pairs[self._active][fqn] if self._active else (None, None)
            if a is None or b is None or not fits(layer, inputs, a):
                return cast(Tensor, type(layer).forward(layer, *args, **kwargs))
            self._whole = adapted_linear(cast(nn.Linear, layer), inputs, a, b, _SCALE)
            return self._whole

        return forward

    @contextmanager
    def active(self, name: str | None) -> Iterator[None]:
        """Let forwards read this adapter, or none; restores what was active before."""
        if name is not None:
            self._require(name)
        before, self._active = self._active, name
        try:
            with nullcontext() if name is None or self._has_hooks else self._hooks():
                yield
        finally:
            self._active, self._whole = before, None

    @contextmanager
    def replaced(
        self, name: str, stand_in: Callable[[nn.Parameter], nn.Parameter]
    ) -> Iterator[None]:
        """Inside, others stand in for an adapter's parameters."""
        before = self._require(name)
        self._pairs[name] = {fqn: (stand_in(a), stand_in(b)) for fqn, (a, b) in before.items()}
        try:
            yield
        finally:
            self._pairs[name] = before

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        self._has_hooks = True
        overridden = [layer for fqn, layer in self._layers.items() if self._override(fqn, layer)]
        hooks = [
            layer.register_forward_hook(self._hook(fqn), with_kwargs=True)
            for fqn, layer in self._layers.items()
        ]
        try:
            with without_graphs():
                yield
        finally:
            self._has_hooks = False
            for hook in hooks:
                hook.remove()
            for layer in overridden:
                del layer.forward

    def _override(self, fqn: str, layer: nn.Module) -> bool:
        """Put our forward in place of a layer's own, if the layer doesn't learn; whether it did."""
        if type(layer) is not nn.Linear or learns(layer) or "forward" in vars(layer):
            return False
        layer.forward = self._forward(fqn, layer)  # type: ignore[method-assign]
        return True

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Layer group ``adapter:<name>`` → its tensors, as ``named_parameters`` calls them."""
        return {
            f"adapter:{name}": tuple(
                f"adapter:{name}/{fqn}.{part}"
                for fqn in layers
                for part in ("lora_A.weight", "lora_B.weight")
            )
            for name, layers in self._pairs.items()
        }

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """``adapter:<name>/<FQN>.lora_A.weight`` and ``….lora_B.weight``, of all adapters."""
        for name, layers in self._pairs.items():
            for fqn, (a, b) in layers.items():
                yield f"adapter:{name}/{fqn}.lora_A.weight", a
                yield f"adapter:{name}/{fqn}.lora_B.weight", b

    def export(self, name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """An adapter as peft stores it.

        Returns:
            The content of ``adapter_config.json``, and the tensors of
            ``adapter_model.safetensors``: A (rank, in) and B (out, rank) of each layer, in the
            layer's dtype, on the CPU, detached.
        """
        layers = self._require(name)
        tensors = {}
        for fqn, (a, b) in layers.items():
            tensors[f"{PEFT_PREFIX}{fqn}.lora_A.weight"] = a.detach().cpu().clone()
            tensors[f"{PEFT_PREFIX}{fqn}.lora_B.weight"] = b.detach().cpu().clone()
        return self._config(name), tensors

    @torch.no_grad()
    def load(self, name: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take over the values of an exported adapter.

        Args:
            config, tensors: As `export` returns them: names and shapes; any dtype and device.

        Raises:
            Malformed: If the configuration is not the one that ``export`` writes,
                or the tensors' names or shapes differ. Nothing is changed then.
        """
        layers = self._require(name)
        for field, value in self._config(name).items():
            if config.get(field) != value:
                raise Malformed(
                    f"{field} is {config.get(field)!r}, expected {value!r}",
                    where=f"adapter {name}",
                    do="Load the adapter into the model and rank that it was exported from",
                )
        expected = {
            f"{PEFT_PREFIX}{fqn}.{part}": parameter
            for fqn, pair in layers.items()
            for part, parameter in zip(("lora_A.weight", "lora_B.weight"), pair, strict=True)
        }
        if odd := expected.keys() ^ tensors.keys():
            raise Malformed(
                f"tensor {min(odd)} is {'missing' if min(odd) in expected else 'unknown'}",
                where=f"adapter {name}",
            )
        for tensor_name, parameter in expected.items():
            if tensors[tensor_name].shape != parameter.shape:
                raise Malformed(
                    f"tensor {tensor_name} has shape {tuple(tensors[tensor_name].shape)}, "
                    f"expected {tuple(parameter.shape)}",
                    where=f"adapter {name}",
                )
        for tensor_name, parameter in expected.items():
            parameter.copy_(tensors[tensor_name])

    def _config(self, name: str) -> dict[str, Any]:
        return peft_config(self.ranks[name], self._pairs[name], transposed=self._transposed)

    def _require(self, name: str) -> dict[str, tuple[nn.Parameter, nn.Parameter]]:
        try:
            return self._pairs[name]
        except KeyError:
            raise UsageError(
                "the model has no such adapter",
                where=f"adapter {name}",
                do=f"It has: {', '.join(self._pairs) or 'none'}",
            ) from None


# LoRA's two products, added to a layer's output: y = x Wᵀ + c + s · (x Aᵀ) Bᵀ.
#
# ``added`` takes the layer's output as it is. ``adapted_linear`` computes all of it as one
# operation, where W and c are constant. As two operations, autograd keeps and adds whole
# activations for two thin products. In one operation the second matrix product adds both. Output
# and gradients are the same, bit for bit. One operation covers ``nn.Linear`` only, without
# autocast.


def learns(layer: nn.Module) -> bool:
    """Whether a parameter of this very module requires grad."""
    return any(p is not None and p.requires_grad for p in layer._parameters.values())


def fits(layer: nn.Module, inputs: Tensor, a: Tensor) -> bool:
    """Whether `adapted_linear` computes what this layer and its adapter would.
    ``a``: the adapter's, (rank, in), of any dtype."""
    return (
        type(layer) is nn.Linear
        and not learns(layer)
        and inputs.dtype == layer.weight.dtype == a.dtype
        and inputs.dim() > 1
        and not torch.is_autocast_enabled(inputs.device.type)
        and not torch.compiler.is_compiling()
    )


def added(output: Tensor, inputs: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """A layer's output with its adapter's; other arguments as for `adapted_linear`.

    Args:
        output: (…, out), of the dtype and device of the inputs. So is the result. Under FSDP2's
            mixed precision that differs from the adapter's dtype.
    """
    if a.dtype != inputs.dtype and not torch.is_autocast_enabled(inputs.device.type):
        a, b = a.to(inputs.dtype), b.to(inputs.dtype)
    low = F.linear(inputs, a).flatten(0, -2)
    return torch.addmm(output.flatten(0, -2), low, _by_row(b), alpha=scale).view(output.shape)


def adapted_linear(layer: nn.Linear, inputs: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """The output of a layer with its adapter.

    Args:
        layer: Its parameters don't require grad.
        inputs: (…, in), of the layer's dtype and on its device, as all tensors here.
        a: (rank, in).
        b: (out, rank).
        scale: s.

    Returns:
        (…, out).
    """
    output = _Adapted.apply(inputs, layer.weight, layer.bias, a, b, scale)
    return cast(Tensor, output)


class _Adapted(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, w: Tensor, c: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        x = inputs.flatten(0, -2)
        low = F.linear(x, a)
        b_t = _by_row(b)
        y = F.linear(x, w, c).addmm_(low, b_t, alpha=scale)
        ctx.save_for_backward(x, w, a, b_t, low)
        ctx.scale, ctx.shape = scale, inputs.shape
        # No view: what a model then does in place, a view made in here would refuse.
        return cast(Tensor, torch.ops.aten._unsafe_view(y, (*inputs.shape[:-1], len(w))))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        x, w, a, b_t, low = ctx.saved_tensors
        d_y = grad_output.flatten(0, -2)
        d_low = F.linear(d_y, b_t).mul_(ctx.scale)
        d_b = (low.t() @ d_y).mul_(ctx.scale).t()
        d_a = d_low.t() @ x
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = (d_y @ w).addmm_(d_low, a).view(ctx.shape)
        return d_x, None, None, d_a, d_b, None


def _by_row(b: Tensor) -> Tensor:
    """Bᵀ row by row: both products of its backward are several times faster then."""
    return b.t().contiguous()
