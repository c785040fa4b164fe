"""What is reached from a Python object: its parts by name, and how all of it is put back.

`put_back` is for what a trial's callables keep: counts, lists and tensors of hooks and wrappers.
All that can be reached from them is noted by identity and content, and written back where it
changed. Every object stays the same object.

Globals, files, and objects of loops, threads and queues are left alone. So is what comes behind the
first hundred thousand objects.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_MOST = 100_000
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type, ModuleType, torch.dtype)
_LOOPS = (
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
)
"""A loop that holds a model is no part of it."""

_OTHERS = ("torch.distributed.", "transformers.")

Undo = Callable[[], None]


def parts(value: Any, *others: str) -> Iterator[tuple[str, object, Any]]:
    """What a value leads to: how the way there is written, what stands in it, and the part.
    ``others``: packages, with a dot, whose objects' attributes are left alone as a loop's are."""
    if isinstance(value, Mapping):
        yield from (("[{!r}]", key, part) for key, part in list(value.items()))
    elif isinstance(value, AbstractSet):
        yield from (("[{!r}]", part, part) for part in list(value))
    elif isinstance(value, (list, tuple, deque)):
        yield from (("[{}]", place, part) for place, part in enumerate(list(value)))
    elif isinstance(value, MethodType):
        yield from ((".__self__", None, value.__self__), ("", None, value.__func__))
    elif isinstance(value, partial):
        yield from parts([value.func, *value.args, *value.keywords.values()])
    elif isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        yield from ((".{}", name, cell) for name, cell in cells)
        yield ".__defaults__", None, value.__defaults__
        yield ".__kwdefaults__", None, value.__kwdefaults__
    elif isinstance(value, CellType):
        with suppress(ValueError):  # an empty one
            yield "", None, value.cell_contents
    elif not _is_of(value, others):
        yield from ((".{}", name, part) for name, part in list((_dict_of(value) or {}).items()))


@contextmanager
def put_back(roots: Iterable[object], leave: Iterable[object]) -> Iterator[None]:
    """Inside, what is reached from these may change; afterwards it is as before."""
    undo: list[Undo] = []
    met = {id(each): each for each in leave}
    ahead = deque(roots)
    while ahead and len(met) < _MOST:
        value: Any = ahead.popleft()
        if id(value) in met or isinstance(value, _PLAIN):
            continue
        if _is_of(value, _OTHERS) and not isinstance(value, (Tensor, nn.Module)):
            continue
        met[id(value)] = value
        if (written := _content(value)) is not None:
            undo.append(written)
        ahead.extend(part for _, _, part in parts(value))
        ahead.append(_dict_of(value))  # itself, for it may gain and lose attributes
    try:
        yield
    finally:
        for each in undo:
            each()


def _is_of(value: object, others: tuple[str, ...]) -> bool:
    """Whether a value's class is of a loop's package, or of one of the others."""
    module: object = getattr(type(value), "__module__", None)
    return isinstance(module, str) and f"{module}.".startswith(_LOOPS + others)


def _dict_of(value: Any) -> dict[str, Any] | None:
    held = getattr(value, "__dict__", None)
    return held if isinstance(held, dict) else None


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
        undo = _cell(value)
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


def _cell(cell: CellType) -> Undo | None:
    try:
        return partial(setattr, cell, "cell_contents", cell.cell_contents)
    except ValueError:  # an empty one
        return None
