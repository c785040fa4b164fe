"""A second device on a machine without one: its tensors are on the CPU, and nobody may tell."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "fakegpu"

aten = torch.ops.aten

collectives: list[tuple[str, str, str]] = []
"""Of each over tensors of the device: operator, device, and name of the process group."""

copies: list[Copy] = []
"""Of each from pinned memory that kept nobody waiting, in order."""

_library: Any = None
_here = threading.local()


@dataclass(eq=False)
class Copy:
    """A copy to the device."""

    stream: Stream
    work: Callable[[], object] | None
    used_on: list[Stream] = field(default_factory=list)


class Stream:
    """Of the device; ``torch.fakegpu.Stream``."""

    def __init__(self, device: Any = None) -> None:
        self.queued: list[Copy] = []

    def record_event(self) -> list[Copy]:
        """All that is queued here by now."""
        return list(self.queued)

    def wait_event(self, event: list[Copy]) -> None:
        """What is queued from now on finds the event's copies done."""
        for each in event:
            if each.work is not None:
                each.work()
                each.work = None


_default = Stream()


def _current_stream(device: Any = None) -> Stream:
    found: Stream = getattr(_here, "stream", _default)
    return found


@contextlib.contextmanager
def _stream(stream: Stream) -> Iterator[None]:
    before, _here.stream = _current_stream(), stream
    try:
        yield
    finally:
        _here.stream = before


class OnDevice(Tensor):
    """A tensor of the device; ``held`` is what it holds."""

    held: Tensor
    copy: Copy | None = None

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        made = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        made.held = held.detach()
        return made

    def tolist(self) -> Any:
        """To the host, which torch does not do for classes of Python."""
        return self.held.tolist()

    def record_stream(self, stream: Any) -> None:
        """The memory is used there, too."""
        assert self.copy is not None
        self.copy.used_on.append(stream)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


def register() -> torch.device:
    """The device, known to this process from now on."""
    global _library
    if _library is None:
        _setup_privateuseone_for_python_backend(NAME)
        _library = torch.library.Library("_", "IMPL")
        _library.fallback(lambda op, *args, **kwargs: _run(op, args, kwargs), "PrivateUse1")
        # A GPU's tensors can take a CPU parameter's place. These can only be exchanged with it.
        torch.__future__.set_swap_module_params_on_conversion(True)
        torch.set_num_threads(1)
        torch.tensor = _tensor
        module = getattr(torch, NAME)
        module.get_amp_supported_dtype = lambda: [torch.bfloat16]
        module.Stream, module.stream, module.current_stream = Stream, _stream, _current_stream
        torch.Tensor.pin_memory = _pin_memory  # type: ignore[method-assign, assignment]
    return torch.device(NAME, 0)


_on_cpu = torch.tensor


def _tensor(data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
    """``torch.tensor``, whose own way onto a device passes Python by."""
    made = _on_cpu(data, **kwargs)
    return made if device is None else made.to(device)


def _pin_memory(tensor: Tensor) -> Tensor:
    made = tensor.clone()
    made.pinned = True  # type: ignore[attr-defined]
    return made


def _later(made: OnDevice, source: Tensor) -> None:
    """Let a stream be waited for, for what a tensor holds."""
    made.held.zero_()
    made.copy = Copy(_current_stream(), lambda: made.held.copy_(source))
    made.copy.stream.queued.append(made.copy)
    copies.append(made.copy)


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    here = [each for each in given if isinstance(each, OnDevice)]
    if any(each.copy and each.copy.work for each in here):
        raise RuntimeError(f"{func} reads a copy to {NAME} that nobody waited for")
    asked = kwargs.get("device")
    leaves = asked is not None and torch.device(asked).type == "cpu"
    held_args, held = tree_map_only(OnDevice, lambda each: each.held, (args, dict(kwargs)))
    if asked is not None:
        held["device"] = torch.device("cpu")
    if func is aten.copy_.default:
        non_blocking = any(each is True for each in (*args[2:], kwargs.get("non_blocking")))
        if non_blocking and getattr(args[1], "pinned", False):
            _later(args[0], args[1])
        else:
            held_args[0].copy_(held_args[1])
        return args[0]
    if func is aten._to_copy.default:
        found = func(*held_args, **held)
        return found if leaves else OnDevice(found)
    strangers = [each for each in given if not isinstance(each, OnDevice) and each.dim()]
    if here and strangers:
        raise RuntimeError(
            f"{func} mixes a tensor of {NAME} with one of {strangers[0].device}, of shape "
            f"{tuple(strangers[0].shape)}"
        )
    if func.namespace == "c10d":
        group = next(each for each in args if isinstance(each, torch.ScriptObject))
        name = dist.ProcessGroup.unbox(group).group_name
        collectives.append((func._schema.name, NAME, name))
    found = func(*held_args, **held)
    same = {id(each.held): each for each in here}

    def onto_device(each: Tensor) -> Tensor:
        if id(each) in same:  # an operator in place
            return same[id(each)]
        return each if leaves else OnDevice(each)

    return tree_map_only(Tensor, onto_device, found)
