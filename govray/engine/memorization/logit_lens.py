"""The frozen logit lens: what each block's output would predict if the model ended there.

The residual stream after block i goes through the model's own final norm and head,
as they are at that moment. Nothing is trained, so the lens leaves no trace.

How it is found: one forward pass records what each block returns, and which modules
outside the blocks are called after the last one. Those, applied one after the other to
the last block's output, must give the model's logits; otherwise there is no lens, and
``missing`` says why. So a model that does more after its blocks is noticed, not misread: one that
scales its logits, say, or projects by a bare function.

States are decoded inside the model's forward, in the last block's hook. So precision is the model's
own, autocast included, and weights that FSDP2 gathers only for a forward are there.

The last block is not read: its lens is the model's output.

Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from govray.engine.model.layer_groups import blocks

_CLOSE = 0.02
"""Share of the largest logit by which the lens may miss the model's: bfloat16 rounds."""

Read = Callable[[str, Tensor], None]
"""(layer, tensor) → nothing."""


@dataclass(frozen=True)
class Lens:
    """A model's lens.
    ``layers``: the blocks that it reads, the last one excepted, in order: ``block.0``, …"""

    layers: tuple[str, ...] = ()
    missing: str | None = None
    _blocks: tuple[nn.Module, ...] = field(default=(), repr=False)
    _after: tuple[nn.Module, ...] = field(default=(), repr=False)

    def decode(self, state: Tensor) -> Tensor:
        """Logits of a residual stream: (rows, tokens, width) → (rows, tokens, vocabulary).
        Both are of the model's dtype and on its device."""
        for module in self._after:
            state = module(state)
        return state

    @contextmanager
    def states(self, read: Read) -> Iterator[None]:
        """Inside, each forward hands over the stream after each layer, before it goes on."""
        kept: dict[str, Tensor] = {}

        def keep(layer: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                stream = _stream(output)
                if stream is not None:
                    kept[layer] = stream

            return hook

        def hand_over(module: nn.Module, args: Any, output: Any) -> None:
            for layer in self.layers:
                if layer in kept:
                    read(layer, kept.pop(layer))

        hooks: list[Callable[..., None]] = [keep(layer) for layer in self.layers]
        handles = [
            module.register_forward_hook(hook)
            for module, hook in zip(self._blocks, [*hooks, hand_over], strict=False)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def logits(self, read: Read) -> Any:
        """As ``states``, with the streams decoded."""
        return self.states(lambda layer, state: read(layer, self.decode(state)))


@torch.no_grad()
def find_lens(model: nn.Module, logits: Callable[[], Tensor]) -> Lens:
    """Find a model's lens, by one forward pass.

    Args:
        model: In evaluation mode.
        logits: Runs the model once over some rows; returns (rows, tokens, vocabulary), of a
            floating dtype, on the model's device.
    """
    names = blocks(model)
    if not names:
        return Lens(missing="the model has no list of repeated blocks")
    inside = [model.get_submodule(fqn) for fqn in names.values()]
    calls: list[tuple[nn.Module, Any]] = []
    watched = {each for block in inside for each in block.modules()} - set(inside)

    def note(module: nn.Module, args: Any, output: Any) -> None:
        calls.append((module, output))

    leaves = [m for m in model.modules() if m not in watched and (m in inside or not _holds(m))]
    handles = [module.register_forward_hook(note) for module in leaves]
    try:
        expected = logits()
    finally:
        for handle in handles:
            handle.remove()
    seen = [module for module, _ in calls if module in inside]
    if seen != inside:
        return Lens(missing="the forward pass does not call each block once, in order")
    last = max(place for place, (module, _) in enumerate(calls) if module is inside[-1])
    streams = [_stream(output) for module, output in calls if module in inside]
    found = Lens(
        layers=tuple(names)[:-1],
        _blocks=tuple(inside),
        _after=tuple(module for module, _ in calls[last + 1 :]),
    )
    if any(stream is None or stream.dim() != 3 for stream in streams):
        return Lens(missing="a block does not return its residual stream")
    problem = _differs(found, streams, expected)
    return found if problem is None else Lens(missing=problem)


def _differs(lens: Lens, streams: Sequence[Tensor | None], expected: Tensor) -> str | None:
    """Why the lens does not give the model's own logits, or None if it does."""
    odd = "what follows the last block is not a row of modules that give the logits"
    if not lens._after:
        return odd
    try:
        # The recorded states left the model's forward, and autocast with it.
        dtype = next((p.dtype for m in lens._after for p in m.parameters()), expected.dtype)
        ours = [lens.decode(each.to(dtype)) for each in streams if each is not None][-1]
    except (RuntimeError, TypeError, ValueError, IndexError):
        return odd
    if not isinstance(ours, Tensor) or ours.shape != expected.shape:
        return odd
    if not expected.isfinite().all():
        return "the model's logits are not finite"
    near = _CLOSE * float(expected.abs().max())
    same = torch.allclose(ours.float(), expected.float(), rtol=0.0, atol=near)
    return None if same else odd


def _stream(output: Any) -> Tensor | None:
    """A block's output, or the first part of it."""
    first = output[0] if isinstance(output, tuple) and output else output
    return first if isinstance(first, Tensor) else None


def _holds(module: nn.Module) -> bool:
    return next(module.children(), None) is not None
