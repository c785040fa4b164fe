"""Put back what a trial's callables keep: counts, lists and tensors of hooks and wrappers.

A hook is a function with a closure, a method of an object, or an object that can be called. All
that can be reached from it is noted by identity and content, and written back where it changed.

Invariants: every object stays the same object. What did not change is not written.

Globals, files, and objects of loops, threads and queues are left alone. So is what comes behind
the first hundred thousand objects.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_MOST = 100_000
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type, ModuleType, torch.dtype)
_OTHERS_OBJECTS = (
    "accelerate.",
    "asyncio.",
    "datasets.",
    "lightning.",
    "lightning_fabric.",
    "logging.",
    "pytorch_lightning.",
    "queue.",
    "ray.",
    "threading.",
    "torch.distributed.",
    "transformers.",
)

Undo = Callable[[], None]


@contextmanager
def put_back(roots: Iterable[object], leave: Iterable[object]) -> Iterator[None]:
    """Inside, what is reached from these may change; afterwards it is as before."""
    undo: list[Undo] = []
    met = {id(each): each for each in leave}
    ahead = deque(roots)
    while ahead and len(met) < _MOST:
        value: Any = ahead.popleft()
        if id(value) in met or isinstance(value, _PLAIN) or _is_of_others(value):
            continue
        met[id(value)] = value
        if (written := _content(value)) is not None:
            undo.append(written)
        ahead.extend(_parts(value))
    try:
        yield
    finally:
        for each in undo:
            each()


def _is_of_others(value: object) -> bool:
    module: object = getattr(type(value), "__module__", None)
    of_others = isinstance(module, str) and f"{module}.".startswith(_OTHERS_OBJECTS)
    return of_others and not isinstance(value, (Tensor, nn.Module))


def _parts(value: Any) -> list[Any]:
    """What a value leads to."""
    found: list[Any] = []
    if isinstance(value, MethodType):
        found = [value.__self__, value.__func__]
    elif isinstance(value, FunctionType):
        found = [*(value.__closure__ or ()), *(value.__defaults__ or ()), value.__kwdefaults__]
    elif isinstance(value, partial):
        found = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, dict):
        found = list(value.values())
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        found = list(value)
    elif isinstance(value, CellType):
        found = [_inside(value)]
    if isinstance(held := getattr(value, "__dict__", None), dict):
        found.append(held)
    return found


def _content(value: Any) -> Undo | None:
    """What writes back the content that a value has now; None if it has none of its own."""
    undo: Undo | None = None
    if isinstance(value, Tensor):
        undo = _tensor(value)
    elif isinstance(value, np.ndarray):
        undo = partial(np.copyto, value, value.copy())
    elif isinstance(value, (dict, list, set, deque)):
        undo = _container(value)
    elif isinstance(value, CellType):
        undo = partial(_refill, value, _inside(value))
    elif isinstance(value, torch.Generator):
        undo = cast(Undo, partial(value.set_state, value.get_state()))
    elif isinstance(value, random.Random):
        undo = partial(value.setstate, value.getstate())
    elif isinstance(value, np.random.Generator):
        undo = partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    return undo


def _tensor(tensor: Tensor) -> Undo | None:
    own = tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
    if own.layout is not torch.strided or own.is_meta or own.is_inference():
        return None
    before = own.clone()

    @torch.no_grad()
    def undo() -> None:
        if not torch.equal(own, before):
            own.copy_(before)

    return undo


def _container(held: Any) -> Undo:
    before: Any = dict(held) if isinstance(held, dict) else list(held)

    def undo() -> None:
        if _identities(held) != _identities(before):
            held.clear()
            if isinstance(held, (dict, set)):
                held.update(before)
            else:
                held.extend(before)

    return undo


def _identities(held: Any) -> list[int]:
    values = held.values() if isinstance(held, dict) else ()
    return [id(each) for each in (*held, *values)]


def _refill(cell: CellType, before: object) -> None:
    if before is not cell:
        cell.cell_contents = before


def _inside(cell: CellType) -> object:
    """What a cell holds; an empty one itself."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell
