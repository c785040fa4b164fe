"""The staircase: rows that may update only upper layers join the others at their entry.

A route that permits a block, everything above it and nothing below needs no backward below that
block, its entry. So the rows of such a route run the layers below by themselves under ``no_grad``,
with nothing stored. At the entry they are put behind the rows that came up with a gradient. From
there on all go together.

    rows that train everything   embedding → block.0 → … ┐
    rows that enter at block.4   (no_grad) → … → block.3 ┴ cat → block.4 → … → head

It works by hooks, on any model whose ``forward`` calls each entry block once, as a
module, with rows in the first dimension. Nothing else is known of the model, so a
staircase is only used after a trial (``pass_check.py``).

Invariants: rows are sorted by entry, so a module is always given the first rows of the pass. The
trial finds which arguments are per row, with numbers of rows that no other size is likely to
equal. That is remembered by place: a mask of shape (tokens, tokens) is not cut because a batch has
as many rows. An argument that the rows share may not carry a gradient.

The planner gives rows with adapters, and weights that differ between layer groups, to other
methods. torch.compile around the whole model is not supported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from govray.errors import Refused

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Place = tuple[Any, ...]
"""Where a tensor sits in a module's arguments: module FQN, then indices and keys."""


@dataclass(frozen=True)
class Stair:
    """Rows of a pass that begin to learn at one module.

    Attributes:
        entry: FQN of that module.
        start: First row.
        stop: Behind the last row.
    """

    entry: str
    start: int
    stop: int


@dataclass
class Places:
    """What is known of a model's arguments.

    Attributes:
        per_row: Place → whether the tensor's first dimension is rows.
        dtypes: Of the rows that were joined.
    """

    per_row: dict[Place, bool] = field(default_factory=dict)
    dtypes: set[torch.dtype] = field(default_factory=set)
    _learning: bool = False

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Inside, sizes decide and are remembered; outside, only memory does."""
        self._learning = True
        try:
            yield
        finally:
            self._learning = False

    def is_per_row(self, place: Place, sizes_match: bool) -> bool:
        """Whether to cut or join the tensor at a place."""
        if self._learning:
            self.per_row[place] = sizes_match
        return self.per_row.get(place, False)


@contextmanager
def staircase(
    model: nn.Module,
    rows: int,
    stairs: Sequence[Stair],
    places: Places,
    frozen: Callable[[int, int], AbstractContextManager[None]],
) -> Iterator[None]:
    """Inside, ``model(...)`` over all rows runs as a staircase.

    Args:
        model: In a state in which the lowest rows' parameters require grad.
        rows: All rows of the pass.
        stairs: By entry, lowest first; together the last rows of the pass.
        places: What the trial has learned, or is learning.
        frozen: (start, stop) → a context for the forward of those rows alone.

    Raises:
        Refused: The model does not call an entry exactly once, or passes it
            something that can't be joined.
    """
    climb = _Climb(model, rows, stairs, places, frozen)
    handles = [model.register_forward_pre_hook(climb.begin, prepend=True, with_kwargs=True)]
    handles += [
        model.get_submodule(stair.entry).register_forward_pre_hook(
            climb.join(stair), prepend=True, with_kwargs=True
        )
        for stair in stairs
    ]
    try:
        yield
        climb.check()
    finally:
        for handle in handles:
            handle.remove()


class _Reached(BaseException):
    """Ends a frozen forward at its entry; no ``except Exception`` of a model swallows it."""

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments


class _Climb:
    """One pass: the hooks' shared state."""

    def __init__(
        self,
        model: nn.Module,
        rows: int,
        stairs: Sequence[Stair],
        places: Places,
        frozen: Callable[[int, int], AbstractContextManager[None]],
    ) -> None:
        self._model = model
        self._rows = rows
        self._stairs = stairs
        self._places = places
        self._frozen = frozen
        self._stopping_at: str | None = None
        self._waiting: dict[str, Arguments] = {}
        self._joined: set[str] = set()

    def begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before the model's forward: run the stairs' rows up to their entries."""
        if self._stopping_at is not None:
            return None
        self.check()
        self._waiting = {
            stair.entry: self._run_up_to(stair, (args, kwargs)) for stair in self._stairs
        }
        self._joined = set()
        return self._cut((args, kwargs), 0, self._stairs[0].start)

    def join(self, stair: Stair) -> Callable[..., Any]:
        """Before an entry: put the waiting rows behind those that arrive."""

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._stopping_at == stair.entry:
                raise _Reached((args, kwargs))
            if self._stopping_at is not None:
                return None
            if stair.entry not in self._waiting:
                _refuse("was called without the model's own forward", stair.entry)
            # Activation checkpointing calls again in backward: the rows wait until the end.
            self._joined.add(stair.entry)
            waiting = self._waiting[stair.entry]
            return self._cat(
                (stair.entry,), (args, kwargs), waiting, stair.start, stair.stop - stair.start
            )

        return hook

    def check(self) -> None:
        """After a forward: every stair's rows have joined."""
        for entry in self._waiting:
            if entry not in self._joined:
                _refuse("was not called by the model's forward", entry)

    def _run_up_to(self, stair: Stair, arguments: Arguments) -> Arguments:
        args, kwargs = self._cut(arguments, stair.start, stair.stop)
        self._stopping_at = stair.entry
        try:
            with torch.no_grad(), self._frozen(stair.start, stair.stop):
                self._model(*args, **kwargs)
        except _Reached as reached:
            return reached.arguments
        finally:
            self._stopping_at = None
        _refuse("was not called by the model's forward", stair.entry)

    def _cut(self, arguments: Arguments, start: int, stop: int) -> Arguments:
        def cut(place: Place, value: Any) -> Any:
            if isinstance(value, Tensor):
                fits = value.dim() > 0 and value.shape[0] == self._rows
                return value[start:stop] if self._places.is_per_row(place, fits) else value
            return _map(cut, place, value)

        args, kwargs = arguments
        return cut(("", 0), args), cut(("", 1), kwargs)

    def _cat(self, place: Place, below: Any, waiting: Any, rows: int, more: int) -> Any:
        if not isinstance(below, Tensor):
            if isinstance(below, Mapping):
                return {
                    key: self._cat((*place, key), value, waiting[key], rows, more)
                    for key, value in below.items()
                }
            if type(below) in (tuple, list):
                return type(below)(
                    self._cat((*place, index), value, waiting[index], rows, more)
                    for index, value in enumerate(below)
                )
            return below
        sizes_match = (
            below.dim() > 0
            and below.shape[0] == rows
            and waiting.shape == (more, *below.shape[1:])
            and below.dtype == waiting.dtype
        )
        if self._places.is_per_row(place, sizes_match):
            if below.is_floating_point():
                self._places.dtypes.add(below.dtype)
            return torch.cat([below, waiting])
        if below.requires_grad:
            _refuse("shares an argument that carries a gradient between rows", str(place[0]))
        return below


def _map(function: Callable[[Place, Any], Any], place: Place, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: function((*place, key), item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(function((*place, index), item) for index, item in enumerate(value))
    return value


def _refuse(what: str, entry: str) -> NoReturn:
    raise Refused(
        f"{entry} {what}, so rows can't join there",
        where=entry,
        do="Leave the choice to the planner, which then routes each stream by itself",
    )
