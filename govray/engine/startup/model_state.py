"""What a model holds between two forwards, as values that can be compared.

Tensors by identity, version and content: a buffer may be replaced by another, and a write
through ``.data`` leaves no version. Beside them what modules keep as attributes of Python:
numbers, texts, containers of those, generators, and tensors that are no buffers.

Invariants:

* Taking a state changes nothing, and needs little memory: of a tensor's content, 64 bits
  are kept.
* An attribute that holds a new tensor after every forward, such as the last attention, counts as
  unchanged. One whose tensor is written in place does not.

Globals, closures, files and objects of torch's own are not looked into.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_CHUNK = 1 << 20
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_DEPTH = 6
# What nn.Module itself keeps, but for the mode, which a forward might switch.
_OWN = frozenset(vars(nn.Module())) - {"training"}


@dataclass(frozen=True)
class Held:
    """One tensor of a model.

    Attributes:
        tensor: It, so that no other can take its place in memory.
        version: How often it was written in place.
        content: 64 bits of what it holds; None if nobody asked.
    """

    tensor: Tensor
    version: int
    content: int | None

    def difference(self, later: Held | None) -> str | None:
        """What happened to it; None if nothing did."""
        if later is None or later.tensor is not self.tensor:
            return "replaced"
        if later.version != self.version or later.content != self.content:
            return "changed"
        return None


def held(tensors: Mapping[str, Tensor], *, content: bool = True) -> dict[str, Held]:
    """The state of named tensors.
    ``content``: whether to look at all numbers; it costs about as much as copying them."""
    digests = contents(tensors) if content else {}
    return {name: Held(t, _version(t), digests.get(name)) for name, t in tensors.items()}


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def contents(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """64 bits of what each tensor holds; equal tensors on one device have equal ones."""
    return {name: _content(tensor) for name, tensor in tensors.items()}


@torch.no_grad()
def _content(tensor: Tensor) -> int:
    own = tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
    if own.layout is not torch.strided or type(own) not in (Tensor, nn.Parameter):
        return 0  # sparse, or another library's: identity and version must do
    if own.is_complex():
        own = torch.view_as_real(own)
    flat = own.contiguous().view(-1)
    if own.device.type == "cpu":
        octets: Any = flat.view(torch.uint8).numpy()
        return int.from_bytes(sha256(octets).digest()[:8])
    # Far from the CPU it is added up where it lies. Sums wrap around; odd factors lose nothing,
    # and differ, so that order counts.
    total = torch.zeros((), dtype=torch.int64, device=own.device)
    for place, chunk in enumerate(flat.view(_WORDS[own.element_size()]).split(_CHUNK)):
        total += (chunk * _factors(own.device)[: len(chunk)]).sum() * (2 * place + 1)
    return int(total)


@cache
def _factors(device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(-(2**62), 2**62, (_CHUNK,), generator=generator)
    return (2 * drawn + 1).to(device)


Attributes = dict[str, object]
"""FQN and name of an attribute → what it was, comparable with ``==``."""


def attributes(model: nn.Module) -> Attributes:
    """What modules and their classes keep as attributes of Python."""
    found: Attributes = {}
    for fqn, module in model.named_modules():
        # Of an object that several modules share, one look is enough.
        for name, value in vars(module).items():
            if name not in _OWN:
                found[f"{fqn}.{name}" if fqn else name] = _seen(value, _DEPTH, frozenset())
    for kind in {kind: None for module in model.modules() for kind in type(module).__mro__}:
        if not kind.__module__.startswith(("builtins", "torch.")):
            for name, value in vars(kind).items():
                if not name.startswith("__") and not callable(value):
                    found[f"{kind.__qualname__}.{name}"] = _seen(value, _DEPTH, frozenset())
    return found


def changed_attribute(before: Attributes, after: Attributes) -> str | None:
    for name in after:
        if name not in before or _differs(before[name], after[name]):
            return name
    return next((name for name in before if name not in after), None)


@dataclass(frozen=True, eq=False)
class _Written:
    """An array or tensor that an attribute holds."""

    value: object
    state: object


@dataclass(frozen=True)
class _Parts:
    """Of a container or object: kind, and what it holds."""

    kind: str
    parts: tuple[tuple[object, object], ...]


# A loop that holds the model is no part of it.
_OTHERS_OBJECTS = frozenset({"torch", "lightning", "lightning_fabric", "pytorch_lightning"})
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def _seen(value: Any, depth: int, above: AbstractSet[int]) -> object:
    if isinstance(value, _PLAIN):
        return repr(value) if value != value else value
    if isinstance(value, Tensor):
        return _Written(value, (_version(value), contents({"": value})[""]))
    if isinstance(value, np.ndarray):
        return _Written(value, value.tobytes())
    if (state := _generator_state(value)) is not None:
        return state
    if depth == 0 or id(value) in above or isinstance(value, (nn.Module, type)):
        return type(value).__qualname__
    inside = above | {id(value)}
    return _Parts(
        type(value).__qualname__,
        tuple((key, _seen(part, depth - 1, inside)) for key, part in _parts(value)),
    )


def _parts(value: Any) -> Iterator[tuple[object, Any]]:
    if isinstance(value, Mapping):
        yield from ((repr(key), part) for key, part in list(value.items()))
    elif isinstance(value, AbstractSet):
        yield from ((key, None) for key in sorted(map(repr, value)))
    elif isinstance(value, (list, tuple)) or type(value).__name__ == "deque":
        yield from enumerate(list(value))
    elif type(value).__module__.partition(".")[0] not in _OTHERS_OBJECTS:
        yield from list(getattr(value, "__dict__", {}).items())


def _generator_state(value: Any) -> object:
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state())
    return None


def _differs(before: object, after: object) -> bool:
    if isinstance(before, _Written) and isinstance(after, _Written):
        return before.value is after.value and before.state != after.state
    if isinstance(before, _Parts) and isinstance(after, _Parts):
        if before.kind != after.kind or [k for k, _ in before.parts] != [k for k, _ in after.parts]:
            return True
        pairs = zip(before.parts, after.parts, strict=True)
        return any(_differs(one, other) for (_, one), (_, other) in pairs)
    return before != after
