"""What a model holds between two forwards, as values that can be compared.

Tensors by identity, version and content: a buffer may be replaced by another, and a write
through ``.data`` leaves no version. Beside them what modules keep as attributes of Python:
numbers, texts, containers of those, generators, and tensors that are no buffers.

Invariants:

* Taking a state changes nothing, and needs little memory: of a tensor's content, 64 bits
  are kept.
* A tensor counts by its content. So an attribute that holds a new tensor after every forward, such
  as the last attention, is as before if the rows are the same. A running mean is not.

Of modules, globals, closures of functions that are no hooks, files and objects of torch's own are
not looked into.
"""

from __future__ import annotations

import inspect
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from govray.engine.model.tensor_content import contents

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


Key = tuple[str, str]
"""Where something is kept, FQN of a module or name of a class, and the way to it from there."""

Kept = dict[Key, object]
"""What it was, comparable with ``==``."""


def attributes(model: nn.Module, *, buffers: bool = False) -> Kept:
    """What modules and their classes keep as attributes of Python, and tensors of their hooks."""
    look = _Look()
    for fqn, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in _OWN or (buffers and name == "_buffers"):
                look.at((fqn, name), value)
    look.classes(kind for module in model.modules() for kind in type(module).__mro__)
    # Of a hook, tensors alone: a list that it writes down what it saw in is no state.
    hooks = _Look(tensors_only=True)
    for fqn, module in model.named_modules():
        for name in _HOOKS:
            hooks.at((fqn, name), list(getattr(module, name).values()))
    return look.found | hooks.found


def kept_beside_parameters(optimizer: torch.optim.Optimizer) -> Kept:
    """What an optimizer keeps, but for the state of single parameters: settings of groups,
    attributes, its classes', and globals that their functions read."""
    look = _Look()
    for place, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if name != "params":
                look.at((f"parameter group {place}", name), value)
    for name, value in vars(optimizer).items():
        if name not in _OF_OPTIMIZERS:
            look.at(("", name), value)
    look.classes(type(optimizer).__mro__, read=True)
    return look.found


def changed(before: Kept, after: Kept) -> Key | None:
    """What is not as it was, or new, or gone; None if all is as it was."""
    for key in after:
        if before.get(key, after[key] if key[1].startswith(_HOOKS) else None) != after[key]:
            return key
    return next((key for key in before if key not in after), None)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# What torch.optim.Optimizer itself keeps; groups are looked at by setting.
_OF_OPTIMIZERS = frozenset(vars(torch.optim.SGD([torch.zeros(1)], lr=0.1))) | {"step"}
# A loop that holds the model is no part of it.
_OTHERS_OBJECTS = frozenset(
    [
        "torch",
        "govray",
        "accelerate",
        "asyncio",
        "datasets",
        "lightning",
        "lightning_fabric",
        "logging",
        "pytorch_lightning",
        "queue",
        "ray",
        "threading",
    ]
)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


class _Look:
    """A walk over what some roots hold. An object that several of them share is seen once."""

    def __init__(self, *, tensors_only: bool = False) -> None:
        self.found: Kept = {}
        self._tensors_only = tensors_only
        self._met: dict[int, object] = {}

    def at(self, key: Key, value: Any, depth: int = _DEPTH) -> None:
        if isinstance(value, Tensor):
            self.found[key] = _tensor_state(value)
        elif isinstance(value, np.ndarray):
            self.found[key] = sha256(value.tobytes()).digest()
        elif isinstance(value, _PLAIN):
            self._leaf(key, repr(value) if value != value else value)
        elif (state := _generator_state(value)) is not None:
            self._leaf(key, state)
        else:
            self._leaf(key, type(value).__qualname__)
            if depth and id(value) not in self._met and not isinstance(value, (nn.Module, type)):
                self._met[id(value)] = value
                where, name = key
                for part, inside in _parts(value):
                    self.at((where, f"{name}{part}"), inside, depth - 1)

    def classes(self, kinds: Iterable[type], *, read: bool = False) -> None:
        """Attributes of these classes; ``read``: and the globals that their functions read."""
        for kind in dict.fromkeys(kinds):
            if kind.__module__.partition(".")[0] in ("builtins", "torch"):
                continue
            for name, value in vars(kind).items():
                if read and isinstance(value, FunctionType):
                    for each, held in _globals(inspect.unwrap(value)):
                        self.at((kind.__module__, each), held)
                if not name.startswith("__") and not callable(value):
                    self.at((kind.__qualname__, name), value)

    def _leaf(self, key: Key, value: object) -> None:
        if not self._tensors_only:
            self.found[key] = value


def _tensor_state(tensor: Tensor) -> object:
    content = contents({"": tensor})[""]
    return tuple(tensor.shape), tensor.dtype, content or _version(tensor)


def _globals(function: Any) -> Iterator[tuple[str, Any]]:
    """Numbers, arrays and containers among the globals that a function names."""
    held = (type(None), int, float, Tensor, np.ndarray, list, dict, set)
    for name in getattr(getattr(function, "__code__", None), "co_names", ()):
        value = function.__globals__.get(name)
        if name in function.__globals__ and isinstance(value, held):
            yield name, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value leads to, and how it is written."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in list(value.items()))
    elif isinstance(value, AbstractSet):
        yield from ((f"[{key}]", None) for key in sorted(map(repr, value)))
    elif isinstance(value, (list, tuple, deque)):
        yield from ((f"[{place}]", part) for place, part in enumerate(list(value)))
    elif isinstance(value, MethodType):
        yield from ((".__self__", value.__self__), ("", value.__func__))
    elif isinstance(value, partial):
        yield from _parts([value.func, *value.args, *value.keywords.values()])
    elif isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        yield from ((f".{name}", cell) for name, cell in cells)
    elif isinstance(value, CellType):
        with suppress(ValueError):  # an empty one
            yield "", value.cell_contents
    elif type(value).__module__.partition(".")[0] not in _OTHERS_OBJECTS:
        yield from ((f".{name}", part) for name, part in list(_dict_of(value).items()))


def _dict_of(value: Any) -> dict[str, Any]:
    return getattr(value, "__dict__", None) or {}


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
