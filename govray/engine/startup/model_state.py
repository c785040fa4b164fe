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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from govray.engine.model.tensor_content import contents
from govray.engine.startup.object_graph import parts

_DEPTH = 6
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


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """What a module keeps beside what every module does, and its mode, which a forward might
    switch."""
    held = vars(module)
    return {name: held[name] for name in held.keys() - _OWN}


def attributes(model: nn.Module, *, buffers: bool = False) -> Kept:
    """What modules and their classes keep as attributes of Python, and tensors of their hooks."""
    look = _Look()
    for fqn, module in model.named_modules():
        held = own_attributes(module) | ({"_buffers": module._buffers} if buffers else {})
        for name, value in held.items():
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
                for way, step, part in parts(value, "torch.", "govray."):
                    self.at((where, name + way.format(step)), part, depth - 1)

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
