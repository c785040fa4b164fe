"""How often a step waits for its device: once, whatever it trains, and late where it can."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from govray.engine.batch import StepBatch
from govray.engine.gradients import device_reading
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.step import GovernedStep
from govray.governance.policy.route import Route
from tests.support.cases import allow_all, governed, micro_batch, step_batch, token_rows
from tests.support.table import each_row

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


CONTEXT, VOCABULARY = 8, 13
UPPER = Route({"block.1": 0.5, "final_norm": 1.0, "head": 1.0})
LEFT, RIGHT = Route({}, "left", 2), Route({}, "right", 2)


def four_streams(
    device: str = "cpu", fused: bool = False, **settings: Any
) -> tuple[GovernedStep, list[Tensor]]:
    """A step of three domains, and its parameters."""
    torch.manual_seed(3)
    model = GPT(2, 16, CONTEXT, VOCABULARY).to(device)
    adapters = Adapters(model, {"left": 2, "right": 2}, seed=0)
    parameters = [*model.parameters(), *(p for _, p in adapters.named_parameters())]
    run = governed(
        model,
        torch.optim.AdamW(parameters, lr=1e-2, fused=fused),
        [allow_all(model), UPPER, LEFT, RIGHT],
        adapters=adapters,
        clip_norm=1.0,
        **settings,
    )
    return run, parameters


def batch(run: GovernedStep, step: int, device: str = "cpu") -> StepBatch:
    routes = [allow_all(run.routed.model), UPPER, LEFT, RIGHT]
    parts = []
    for index, route in enumerate(routes):
        rows = token_rows(3, CONTEXT, VOCABULARY, step, index)
        rows["targets"][:, :2] = -100
        part = micro_batch(route, rows)
        moved = {name: tensor.to(device) for name, tensor in rows.items()}
        corpora = ("corpus",) * 3
        parts.append(type(part)(part.stream, moved, part.positions, part.row_targets, corpora))
    return step_batch(step, parts)


def reads_of(loss_fn: Any = loss, **settings: Any) -> HostReads:
    """Of the fourth step: what is tried once was tried before, and contents that the second left
    are compared in the third."""
    run, parameters = four_streams(**settings)
    for step in range(3):
        run(batch(run, step), loss)
    rows = batch(run, 3)
    of_batch = (tensor for part in rows.micro_batches for tensor in part.tensors.values())
    with host_reads([*parameters, *of_batch]) as reads:
        result = run(rows, loss_fn)
    assert len(result.stream_losses) == 4
    assert set(result.grad_norms) == {"embedding", "adapter:left", "adapter:right"}
    assert (result.norms is not None) == bool(settings.get("norms_every") == 1)
    return reads


@each_row("norms_every", [50, 1])
@each_row("max_rows", [None, 2])
def test_a_step_reads_its_device_once(norms_every: int, max_rows: int | None) -> None:
    found = reads_of(norms_every=norms_every, max_rows=max_rows).found
    assert len(found) == 1, found


def test_values_that_are_read_one_by_one_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control, and what a step did before: of each stream loss and count, of each domain a
    norm.
    """
    monkeypatch.setattr(
        device_reading, "_host_values", lambda scalars: lambda: [float(each) for each in scalars]
    )
    assert len(reads_of().found) == 4 + 4 + 3


@each_row("norms_every", [50, 1])
def test_a_late_step_reads_nothing_before_it_is_confirmed(norms_every: int) -> None:
    """Of the step before, what was computed is a copy on the host by then."""
    run, parameters = four_streams(fused=True, late=True, norms_every=norms_every)
    for step in range(3):
        run.queue(batch(run, step), loss)
    rows = batch(run, 3)
    of_batch = (tensor for part in rows.micro_batches for tensor in part.tensors.values())
    with host_reads([*parameters, *of_batch]) as reads:
        (before,) = run.queue(rows, loss)
        assert reads.found == []
        last = run.confirm()
    assert last is not None
    assert (before.step, last.step) == (2, 3)
    assert len(reads.found) == 1, reads.found


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [
        {"norms_every": 50},
        {"norms_every": 1},
        {"cuda_graphs": True},
        {"fused": True},
        {"fused": True, "cuda_graphs": True},
    ],
    ids=["plain", "norms sampled", "graphs", "late", "late, graphs"],
)
def test_torch_sees_no_other_wait(settings: dict[str, Any]) -> None:
    run, _ = four_streams("cuda", **settings)
    batches = [batch(run, step, "cuda") for step in range(5)]
    for each in batches[:4]:
        run(each, loss)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(batches[4], loss)
        with pytest.raises(RuntimeError, match="synchronizing"):  # the control
            float(run.routed.model.head.weight.sum())
    finally:
        torch.cuda.set_sync_debug_mode("default")
