"""Counts reads of device values: on a GPU, each lets the host wait until the device is done."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_aten = torch.ops.aten

_VALUES = (
    _aten._local_scalar_dense,
    _aten.equal,
    _aten.is_nonzero,
)
"""Operators whose result is a number of the host."""

_SHAPES = (
    _aten.nonzero,
    _aten.masked_select,
    _aten._unique2,
    _aten.unique_consecutive,
    _aten.unique_dim,
    _aten.bincount,
    _aten.repeat_interleave,
)
"""Operators whose result has a shape that depends on values."""

_INDEXED = (_aten.index, _aten.index_put, _aten.index_put_)
"""The same where an index is a mask."""

_PAST_OPERATORS = (Tensor.tolist, Tensor.numpy, Tensor.__array__)
"""Methods that read without an operator."""


class HostReads:
    """What was read."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._held: dict[int, Any] = {}  # storages, kept so that no address is used again

    def mark(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._held[storage._cdata] = storage

    def is_marked(self, tensor: Tensor) -> bool:
        """Whether it would be on the device."""
        return tensor.untyped_storage()._cdata in self._held

    def note(self, operator: str) -> None:
        frames = [f for f in traceback.extract_stack() if "/torch/" not in f.filename]
        asked = [f for f in frames if "host_reads" not in f.filename][-1]
        self.found.append(f"{operator} in {asked.filename.rpartition('/')[2]}: {asked.name}")


class _Operators(TorchDispatchMode):
    """Follows marks through operators, forward and backward."""

    def __init__(self, reads: HostReads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        marked = [each for each in given if self._reads.is_marked(each)]
        masks = func.overloadpacket in _INDEXED and any(
            each.dtype in (torch.bool, torch.uint8) for each in given
        )
        if marked and (masks or func.overloadpacket in (*_VALUES, *_SHAPES)):
            self._reads.note(str(func))
        result = func(*args, **(kwargs or {}))
        if marked:
            self._reads.mark(each for each in tree_leaves(result) if isinstance(each, Tensor))
        return result


class _Methods(TorchFunctionMode):
    """Sees reads that are no operators."""

    def __init__(self, reads: HostReads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _PAST_OPERATORS and self._reads.is_marked(args[0]):
            self._reads.note(func.__name__)
        return func(*args, **(kwargs or {}))


@contextmanager
def host_reads(tensors: Iterable[Tensor]) -> Iterator[HostReads]:
    """Inside, reads of these tensors and of what is computed from them are counted."""
    reads = HostReads()
    reads.mark(tensors)
    with _Methods(reads), _Operators(reads):
        yield reads
