"""A second device on a machine without one: its tensors are on the CPU, and nobody may tell.

``register()`` gives this process a device ``fakegpu``, for good: so call it in a process of its
own, such as a rank of a `RankPool`. A tensor there holds an ordinary CPU tensor and computes with
CPU kernels, hence with the CPU's bits. But torch takes it for one of another device:

* An operator that mixes it with a CPU tensor fails as on a GPU. A CPU tensor without dimensions may
  join, as torch lets it.
* A collective is listed with the device of its tensors and its process group.

Source: torch's Python backends for PrivateUse1 (`torch.utils.backend_registration`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

_library: Any = None


class OnDevice(Tensor):
    """A tensor of the device; ``held`` is what it holds."""

    held: Tensor

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
    return torch.device(NAME, 0)


_on_cpu = torch.tensor


def _tensor(data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
    """``torch.tensor``, whose own way onto a device passes Python by."""
    made = _on_cpu(data, **kwargs)
    return made if device is None else made.to(device)


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    here = [each for each in given if isinstance(each, OnDevice)]
    asked = kwargs.get("device")
    leaves = asked is not None and torch.device(asked).type == "cpu"
    held_args, held = tree_map_only(OnDevice, lambda each: each.held, (args, dict(kwargs)))
    if asked is not None:
        held["device"] = torch.device("cpu")
    if func is aten.copy_.default:
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
