"""Call a training loop up to `govern`, for the model that it builds, on one device.

`govern` ends that call. What stands before it in a loop should therefore build the model and
nothing else.

Routes, and so the batch plan, depend on the model's layer groups, but only the user's loop knows
the model. So the driver calls the loop once on the meta device (no memory, no arithmetic), wherever
the loop puts the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from ray.data import DataContext, DataIterator
from ray.train.v2._internal.execution import train_fn_utils
from ray.train.v2.torch import train_loop_utils
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

from govray.engine.startup.optimizer_kinds import without_compiler
from govray.errors import GovrayError, UsageError
from govray.train.inputs.order import Discovery, current
from govray.train.worker.run_start import Discovered

Loop = Callable[[dict[str, Any]], Any]


def until_govern(
    loop: Loop,
    config: dict[str, Any],
    policy_groups: Mapping[str, tuple[str, ...]],
    device: torch.device,
    *,
    where: str,
) -> Discovered:
    """The model that the loop passes to `govern`, on one device, and its layer groups.

    Args:
        device: The meta device, where a model takes no memory, or the CPU.

    Raises:
        UsageError: The loop failed before it called `govern`, or never called it.
    """
    token = current.set(Discovery(policy_groups=dict(policy_groups)))
    try:
        with only_on(device), without_compiler():
            loop(config)
    except Discovered as found:
        return found
    except GovrayError:
        raise
    except Exception as error:
        raise UsageError(
            f"the training loop failed before it called govern: {type(error).__name__}: {error}",
            where=where,
            do="Until then it runs without its worker too, on another device: only build the model",
        ) from error
    finally:
        current.reset(token)
    raise UsageError(
        "the training loop ended without calling govern(model, optimizer)",
        where=where,
        do="Call it once, where prepare_model was",
    )


def discover(
    loop: Loop,
    config: dict[str, Any],
    policy_groups: Mapping[str, tuple[str, ...]],
    where: str | None = None,
) -> Discovered:
    """The model that the loop passes to `govern`, on the meta device, and its layer groups.

    Args:
        policy_groups: Layer groups that the policy names itself.
        where: What the user calls the loop; its name by default.

    Raises:
        UsageError: The loop failed before it called `govern`, or never called it.
    """
    called = where or str(getattr(loop, "__qualname__", type(loop).__name__))
    return until_govern(loop, config, policy_groups, torch.device("meta"), where=called)


# Keep what a training loop builds on one device, wherever the loop asks for it.
#
# A loop is written for its worker: it moves the model with ``.to("cuda")``, or gives ``device=``
# to factories and modules. During discovery it runs on the driver, which may have no GPU and has
# no memory to spare: there it gets the meta device. An audit has it build the model on the CPU.
# Here every device that the loop names means that one; a change of dtype still applies.
#
# Ray answers as it would a worker, the only one, whose device is that one. Its shards have no rows.
# ``torch.cuda.is_available()`` stays the driver's own, for either answer leads here. An explicit
# ``device="cpu"`` in a factory holds, as under ``torch.device("meta")``: models compute small
# tables of Python numbers so.
#
# Not covered: streams, events and memory figures of ``torch.cuda``, and reading a value of a
# tensor.
#
# Source: Ray 2.60, whose private names are used here; a test would notice if they went.


_STAYS: frozenset[Callable[..., Any]] = frozenset({Tensor.cpu, Tensor.pin_memory})
"""Methods that give a tensor of the meta device back as it is."""

_DRAWS: frozenset[Callable[..., Any]] = frozenset(
    {init.normal_, init.uniform_, init.kaiming_uniform_}
)
"""What fills a tensor. One of the meta device has no numbers, and torch's compiler is imported to
draw none of them (`govray.engine.startup.optimizer_kinds`)."""


@contextmanager
def only_on(device: torch.device) -> Iterator[None]:
    """Inside, tensors are made on a device and stay there.
    ``device``: the meta device or the CPU."""
    with ExitStack() as stack:
        for patched in _answers(device):
            stack.enter_context(patched)
        stack.enter_context(device)
        stack.enter_context(_Stay(device))
        yield


class _Stay(TorchFunctionMode):
    """Reads every device that a function is given as one."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.to:
            return self._moved(*args, **kwargs)
        if func is Tensor.cuda:
            return args[0].to(self._device)
        if func in _DRAWS and isinstance(filled := kwargs.get("tensor"), Tensor) and filled.is_meta:
            return filled
        if func in _STAYS and args[0].is_meta:
            return args[0]
        given = kwargs.get("device")
        if given is not None and torch.device(given).type not in ("cpu", "meta"):
            kwargs["device"] = self._device
        return func(*args, **kwargs)

    def _moved(self, tensor: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
        """``tensor.to(…)``, but to the one device, or to no other device at all."""
        device, dtype, _, memory_format = _parsed(*args, **kwargs)
        here = tensor.device
        if device is not None and not tensor.is_meta and device.type != "cpu":
            here = device if device.type == "meta" else self._device
        more = {} if memory_format is None else {"memory_format": memory_format}
        return tensor.to(device=here, dtype=dtype or tensor.dtype, copy=copy, **more)


def _answers(device: torch.device) -> Iterator[Any]:
    """Patches of what a loop asks and tells the runtime about its device.
    Loops may have imported Ray's functions before, so what those look up is patched, not they."""
    yield patch.object(torch.cuda, "set_device", lambda device: None)
    yield patch.object(torch.cuda, "current_device", lambda: 0)
    yield patch.object(torch, "set_default_device", lambda device: None)
    yield patch.object(torch._C._nn, "_parse_to", _parsed)
    yield patch.object(train_fn_utils, "_train_fn_utils", _Alone("discovery"))
    yield patch.object(train_loop_utils, "get_devices_distributed", lambda: [device])


_parse_to: Callable[..., Any] = torch._C._nn._parse_to


def _parsed(*args: Any, **kwargs: Any) -> Any:
    """The arguments of ``to``, where a number is a GPU also on a machine without any."""
    first, *rest = args or (kwargs.pop("device", None),)
    return _parse_to(f"cuda:{first}" if type(first) is int else first, *rest, **kwargs)


class _Alone(train_fn_utils.LocalTrainFnUtils):
    """Ray's context of a worker: the only one, of rank 0, before anything is planned."""

    def is_distributed(self) -> bool:
        return True  # so that Ray asks for the devices above

    def get_dataset_shard(self, dataset_info: object) -> DataIterator:
        return _NoRows()


class _NoRows(DataIterator):
    """A shard of a run that isn't planned: it has batches only on a worker."""

    def _to_ref_bundle_iterator(self) -> tuple[Iterator[Any], None, None]:
        return iter(()), None, None

    def schema(self) -> None:
        return None

    def stats(self) -> str:
        return ""

    def get_context(self) -> DataContext:
        return DataContext.get_current()
