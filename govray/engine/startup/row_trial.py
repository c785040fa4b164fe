"""Before rows of a stream train anything: a few of them go through the model for trial.

Exact routing rests on what no scan of modules can see. So before a process first trains on a
stream, at step 0 or after a resume, the stream's first rows run forward and backward. Nothing is
learned from them. It is done again with more rows at a stream's 16th, 32nd, … 512th step, and then
at each 512th. Data may take another branch by then. What must hold:

1. Nothing stays behind: parameters and buffers are the same tensors with the same content,
   generators and the attributes of modules are as they were.
2. The same row gives the same loss again, and leaves the same in modules.
3. A row gives the same loss and the same gradient alone, among others, and in another order. The
   bound of losses is √ε, with ε of the coarsest dtype inside the loss (``precision.py``). That of
   gradients is each parameter's own: it rests on its repetitions (``gradient_gap.py``).

Where the loss draws from torch's, Python's or numpy's global generator, a row meets other draws in
another place. Then each row stays in its place, and meets the same draws there. The others are
exchanged, and its loss and gradient must stay.

It computes in float32 at least, whatever the run's precision: bfloat16 hides what couples rows.
Where the loss still computes in a half precision, it is tried in float64 too, which autocast leaves
alone. If it can't compute so, the run's own precision has to do. The first rows of a stream are
compared with drawn weights too: what acts on no loss yet, or hardly, acts there.

What ``torch.compile`` has in hand runs without a graph in the trial, which would need more
graphs than training.

Gradients are compared once for each parameter of the model, and once for adapters. Later streams
that may update no more are tried by their losses.

Invariants: the trial changes no number. It writes no weight, restores every generator, and
leaves no gradient. It is one rank's own affair: what it refuses, the agreement carries.

A difference below rounding is not seen. Neither is one that comes from a branch that these rows do
not take.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from govray.engine.batch import MicroBatch
from govray.engine.gradients.forward import Forward, LossFn
from govray.engine.gradients.gradient_gap import Gradients, gaps, rounding
from govray.engine.gradients.pass_planner import Pass
from govray.engine.gradients.precision import coarsest, watch_dtypes
from govray.engine.model.compiled_blocks import without_graphs
from govray.engine.model.rng_state import generators
from govray.engine.startup.exact_weights import Make, drawn, in_dtype, other_weights
from govray.engine.startup.model_state import Held, attributes, changed, held
from govray.engine.steps.routed import Routed
from govray.engine.steps.row_difference import (
    REPEATED,
    apart,
    due_again,
    require_same_gradients,
    require_same_loss,
)
from govray.errors import GovrayError, Refused

ROWS = 3
"""Rows of a first trial: fewer could hide what depends on which others there are."""

_LATER_ROWS = 6

_SHARES = (1.0, 0.5, 2.0, 0.25, 4.0, 0.125)
"""Of each row in the sum that backward starts from: unequal, and exact in every dtype."""


class StartupTrial:
    """Tries streams as they come.

    Args:
        routed: Digest of a route → the route. An alternative is tried as a stream is.
        max_rows: Rows that go through the model together at most; None for no limit.
    """

    def __init__(
        self,
        forward: Forward,
        model: nn.Module,
        routed: Mapping[str, Routed],
        max_rows: int | None,
    ) -> None:
        self._forward = forward
        self._model = model
        self._routed = routed
        self._most = min(ROWS, max_rows or ROWS)
        self._later = min(_LATER_ROWS, max_rows or _LATER_ROWS)
        self._steps_with: Counter[str] = Counter()
        self._rows_tried: dict[str, int] = {}
        # What gradients were compared of: base parameters, and whether of an adapter.
        self._compared: set[str] = set()
        self._compared_adapter = False
        self._drawn: set[str] = set()
        self._looked_at_content = False

    def __call__(self, parts: Sequence[MicroBatch], step: int, loss_fn: LossFn) -> None:
        """Try the streams of these rows that were not tried yet, or are due again.
        A stream of which there was one row only is tried once more when there are several."""
        self._forget_some({part.route for part in parts})
        due = {
            stream: rows
            for stream, rows in self._due(parts).items()
            if len(rows) > self._rows_tried.get(stream, 0)
        }
        own = {s: sum(len(p.positions) for p in parts if p.route == s) for s in due}
        if not due:
            return
        with without_graphs(), _no_other_generator():
            # Those that may update most come first: the others have less to compare then.
            for stream in sorted(due, key=lambda s: (-len(self._routed[s].weights), s)):
                rows = self._compare(stream, due[stream], own[stream], step, loss_fn)
                self._rows_tried[stream] = self._most if rows > 1 else 1
        self._looked_at_content = True

    def _forget_some(self, streams: Set[str]) -> None:
        """Of these streams of a step, what was found of those that are to be tried again."""
        self._steps_with.update(streams)
        again = {stream for stream in streams if due_again(self._steps_with[stream])}
        if again:
            self._most = self._later
            self._compared, self._compared_adapter = set(), False
            for stream in again:
                self._rows_tried.pop(stream, None)
            for stream, rows in self._rows_tried.items():
                self._rows_tried[stream] = self._most if rows > 1 else 1

    def _compare(
        self, stream: str, rows: Sequence[MicroBatch], own: int, step: int, loss_fn: LossFn
    ) -> int:
        """Compare the stream's rows, those of others only if the loss takes them; how many."""
        try:
            self._compare_exactly(stream, rows, step, loss_fn)
        except GovrayError:
            raise
        except Exception:
            if own >= len(rows):
                raise
            # A loss may know its stream by what stands in the rows; its own are enough.
            rows = rows[:own]
            self._compare_exactly(stream, rows, step, loss_fn)
        return len(rows)

    def _compare_exactly(
        self, stream: str, rows: Sequence[MicroBatch], step: int, loss_fn: LossFn
    ) -> None:
        """Compare rows in float32 at least, with the run's weights and, at first, with others."""

        def compare(make: Make | None, most: int = _LATER_ROWS) -> _Comparison:
            content = not self._looked_at_content and most > 2
            chosen = [_with(row, make) for row in rows[:most]]
            with (
                nullcontext(self._forward)
                if make is None
                else other_weights(self._model, self._forward, self._routed[stream].adapter, make)
            ) as forward:
                trial = _Comparison(self, forward, stream, chosen, step, loss_fn, found)
                try:
                    with self._nothing_left_behind(
                        forward, self._pass(chosen[:1]), content=content
                    ):
                        trial.run()
                finally:
                    trial.drop_gradients()
            return trial

        found: _Comparison | None = None
        finest = torch.float32
        try:
            found = compare(in_dtype(finest))
        except GovrayError:
            raise
        except Exception:  # it may cast by itself, or lack the memory
            if self._forward.is_exact:
                raise
            compare(None)
            return
        with _errors_pass():
            if found.halves:
                compare(in_dtype(torch.float64))
                finest = torch.float64
        with _errors_pass():
            if found.deep and stream not in self._drawn:
                self._drawn.add(stream)
                compare(drawn(finest), 2)

    def _due(self, parts: Sequence[MicroBatch]) -> dict[str, list[MicroBatch]]:
        """Of each stream here: some rows, own ones first, then others of the same shapes."""
        rows: dict[str, list[MicroBatch]] = {}
        for part in parts:
            if self._rows_tried.get(part.route, 0) < self._most:
                rows.setdefault(part.route, [])
        for stream in rows:
            own = [part for part in parts if part.route == stream]
            others = [part for part in parts if part.route != stream and _alike(part, own[0])]
            for part in (*own, *others):
                for index in range(min(self._most - len(rows[stream]), len(part.positions))):
                    row = part.cut(index, index + 1)
                    rows[stream].append(replace(row, stream=own[0].stream, taken=own[0].taken))
        return rows

    @contextmanager
    def _nothing_left_behind(
        self, forward: Forward, each: Pass, *, content: bool
    ) -> Iterator[None]:
        before = self._tensors(forward, each, content=content)
        yield
        after = self._tensors(forward, each, content=content)
        for name, one in before.items():
            if what := one.difference(after.get(name)):
                _refuse_kept(f"the forward pass {what} {name}", self._module_of(name))

    def _tensors(self, forward: Forward, each: Pass, *, content: bool) -> dict[str, Held]:
        # Afresh, for a module may hold another parameter by then.
        found = dict(self._model.named_parameters())
        found |= {n: p for n, p in forward.reached([each]).items() if n not in found}
        buffers = {f"buffer {name}": buffer for name, buffer in self._model.named_buffers()}
        parameters = {f"parameter {name}": tensor for name, tensor in found.items()}
        return held(parameters, content=content) | held(buffers)

    def _pass(self, rows: Sequence[MicroBatch]) -> Pass:
        routed = self._routed[rows[0].route]
        return Pass(tuple(rows), routed.weights, routed.adapter)

    def _module_of(self, name: str) -> str:
        fqn = name.rpartition(" ")[2].rpartition(".")[0]
        return fqn or type(self._model).__name__


class _Comparison:
    """Compares one stream's rows with themselves."""

    def __init__(
        self,
        trial: StartupTrial,
        forward: Forward,
        stream: str,
        rows: Sequence[MicroBatch],
        step: int,
        loss_fn: LossFn,
        earlier: _Comparison | None,
    ) -> None:
        self._trial = trial
        self._forward = forward
        self._stream = stream
        self._rows = rows
        self._step = step
        self._loss_fn = loss_fn
        self._draws = False
        self._dtypes: set[torch.dtype] = set()
        routed = trial._routed[stream]
        base = dict(trial._model.named_parameters())
        self._learning = {
            name: parameter
            for name, parameter in forward.reached([trial._pass(rows[:1])]).items()
            if name in routed.weights
        }
        self._own = {name for name in self._learning if name in base}
        self._adapts = len(self._own) < len(self._learning)
        self.deep: bool = (
            earlier.deep
            if earlier
            else not self._own <= trial._compared or (self._adapts and not trial._compared_adapter)
        )

    @property
    def halves(self) -> bool:
        """Whether some of the loss was computed in a half precision."""
        return any(dtype.itemsize < 4 for dtype in self._dtypes)

    def run(self) -> None:
        together = tuple(range(len(self._rows)))
        losses, gradients = self._pass(together, backward=True)
        noise = self._repeat(together, losses, gradients)
        if len(together) == 1:
            if self._trial._most > 1:
                return
        elif self._draws:
            self._compare_in_place(together, losses)
        else:
            self._compare_alone(together, losses, gradients, noise)
        if self.deep:
            self._trial._compared |= self._own
            self._trial._compared_adapter |= self._adapts

    def _repeat(
        self, order: Sequence[int], losses: Sequence[float], gradients: Gradients
    ) -> Mapping[str, float]:
        """The same pass again; how much of its gradients is rounding."""
        model = self._trial._model
        repeated = []
        # Twice, for what a forward sets anew each time, such as the number of rows, is no state.
        for factor in REPEATED:
            kept = attributes(model)
            again, found = self._pass(order, factor=factor, backward=self.deep)
            repeated.append(found)
        after = attributes(model)
        if changed(kept, after):
            # Once more, for what a backward leaves, such as the last gradient, has its factor.
            self._pass(order, factor=factor, backward=self.deep)
            kept, after = after, attributes(model)
        if key := changed(kept, after):
            where, _ = key
            _refuse_kept(
                f"the forward pass changed the attribute {'.'.join(filter(None, key))}",
                where or type(model).__name__,
            )
        self._require_same_again(order, losses[0], again[0])
        return rounding(gradients, repeated) if self.deep else {}

    def _compare_alone(
        self,
        together: Sequence[int],
        losses: Sequence[float],
        gradients: Gradients,
        noise: Mapping[str, float],
    ) -> None:
        """Each row by itself, against all of them in two orders."""
        alone = [self._losses((row,), backward=self.deep)[0] for row in together]
        expected = self._taken()
        turned = (together[-1], *together[:-1])
        for order, (found, took) in (
            (together, (losses, gradients)),
            (turned, self._pass(turned, backward=self.deep)),
        ):
            for place, row in enumerate(order):
                self._require_independent((row,), 0, alone, order, place, found)
            if self.deep:
                self._require_equal(expected, took, noise)

    def _compare_in_place(self, together: Sequence[int], losses: Sequence[float]) -> None:
        """Each row where it is, so that it meets the same draws, beside other rows."""
        for place in together:
            order = tuple(row if row == place else (row + 1) % len(together) for row in together)
            found, took = self._pass(order, backward=self.deep, only=place)
            self._require_independent(together, place, losses, order, place, found)
            if self.deep:
                expected, *repeated = (
                    self._pass(together, backward=True, only=place, factor=factor)[1]
                    for factor in (1.0, *REPEATED)
                )
                self._require_equal(expected, took, rounding(expected, repeated))

    def _pass(
        self,
        order: Sequence[int],
        *,
        backward: bool,
        only: int | None = None,
        factor: float = 1.0,
    ) -> tuple[list[float], Gradients]:
        """Losses of some rows by place, and the gradients of one of them or all, if wanted."""
        return self._losses(order, backward=backward, only=only, factor=factor), self._taken()

    def _losses(
        self,
        order: Sequence[int],
        *,
        backward: bool,
        only: int | None = None,
        factor: float = 1.0,
    ) -> list[float]:
        """The losses of some rows, by place, all in one pass."""
        rows = [self._rows[index] for index in order]
        if self._draws:  # what is drawn belongs to a place: generators are seeded by positions
            places = zip(rows, self._rows, strict=False)
            rows = [replace(row, positions=there.positions) for row, there in places]
        with self._forward(self._trial._pass(rows), self._step, self._watched) as parts:
            sums = [part.sum for part in parts]
            self._dtypes.update(each.dtype for each in sums)
            if backward:
                seen = watch_dtypes(sums)
                chosen = [
                    each * (factor * _SHARES[index])
                    for place, (each, index) in enumerate(zip(sums, order, strict=True))
                    if only in (None, place)
                ]
                torch.autograd.backward(torch.stack(chosen).sum())
                self._dtypes |= seen
        return [float(each.detach()) for each in sums]

    def _watched(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        before = generators()
        losses = self._loss_fn(model, tensors)
        self._draws |= bool(before.drawn_until(generators()))
        return losses

    def _taken(self) -> Gradients:
        """The gradients so far, out of ``.grad``."""
        found = {name: p.grad for name, p in self._learning.items() if p.grad is not None}
        self.drop_gradients()
        return found

    def drop_gradients(self) -> None:
        """Leave none of what was computed so far."""
        for parameter in self._learning.values():
            parameter.grad = None

    @property
    def _tolerance(self) -> float:
        return float(coarsest(self._dtypes) ** 0.5)

    def _require_same_again(self, order: Sequence[int], first: float, again: float) -> None:
        on_cpu = next(self._trial._model.parameters()).device.type == "cpu"
        tolerance = self._tolerance
        if on_cpu:  # the same kernels over the same numbers
            tolerance = 64 * torch.finfo(torch.float32).eps
        if apart(first, again, abs(first)) > tolerance:
            where = self._where(order, 0, order, 0, tolerance)
            _refuse_kept(
                f"the same row has another loss when it comes again: {again:.6g}, "
                f"before {first:.6g}",
                where,
            )

    def _require_independent(
        self,
        reference: Sequence[int],
        at: int,
        alone: Sequence[float],
        order: Sequence[int],
        place: int,
        losses: Sequence[float],
    ) -> None:
        """The row at a place of an order has the loss that it has in the reference."""
        expected = alone[order[place]]
        largest = max((abs(each) for each in alone if math.isfinite(each)), default=0.0)
        require_same_loss(
            expected,
            losses[place],
            0.5 * (abs(expected) + largest),
            self._tolerance,
            lambda: self._where(reference, at, order, place, self._tolerance),
        )

    def _require_equal(
        self, expected: Gradients, found: Gradients, noise: Mapping[str, float]
    ) -> None:
        apart = gaps(expected, found, noise)
        require_same_gradients(apart, self._tolerance, self._trial._module_of)

    def _where(
        self,
        one: Sequence[int],
        at: int,
        other: Sequence[int],
        place: int,
        tolerance: float,
    ) -> str:
        """The innermost module in which the same row first differs between two passes."""

        def run(order: Sequence[int]) -> Callable[[], object]:
            return lambda: self._losses(order, backward=False)

        model = self._trial._model
        return first_difference(
            model, (run(one), len(one), at), (run(other), len(other), place), tolerance
        )


def _alike(part: MicroBatch, other: MicroBatch) -> bool:
    """Whether rows of both can stand in one tensor."""
    return part.tensors.keys() == other.tensors.keys() and all(
        tensor.shape[1:] == other.tensors[name].shape[1:]
        and tensor.dtype == other.tensors[name].dtype
        and tensor.device == other.tensors[name].device
        for name, tensor in part.tensors.items()
    )


def _with(row: MicroBatch, make: Make | None) -> MicroBatch:
    """A row whose numbers have the dtype of the weights."""
    if make is None:
        return row
    return replace(row, tensors={name: make(tensor) for name, tensor in row.tensors.items()})


@contextmanager
def _errors_pass() -> Iterator[None]:
    """What a model can't compute with other weights says nothing about it."""
    try:
        yield
    except GovrayError:
        raise
    except Exception:
        return


@contextmanager
def _no_other_generator() -> Iterator[None]:
    before = _device_generators()
    yield
    # A device that the loss was the first to use had no state before.
    for place, (one, other) in enumerate(zip(before, _device_generators(), strict=False)):
        if not torch.equal(one, other):
            _refuse_kept(
                f"the loss draws from the generator of device {place}, which is not the "
                "current one, so streams would share it",
                "loss_fn",
            )


def _device_generators() -> list[Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def _refuse_kept(what: str, where: str) -> NoReturn:
    raise Refused(
        f"{what}: what one class leaves behind, another reads",
        where=where,
        do="Keep nothing that a forward or a loss writes, and draw from the global generators "
        "of torch, Python or numpy only, which belong to a stream while it runs",
    )


# Which module first treats the same row differently in two forwards: a place for people. Every
# module's inputs and outputs are compared in the order of the calls: the one row of each that
# stands for the same data. Tensors are not looked at whose first dimension is neither the rows nor
# a multiple of them.


Run = tuple[Callable[[], object], int, int]
"""A forward, how many rows it has, and which of them is looked at."""

LOSS = "loss_fn"


@dataclass(frozen=True)
class _Event:
    fqn: str
    comes_in: bool
    inside: str  # the module whose code caused it
    tensors: tuple[Tensor, ...]


def first_difference(model: nn.Module, one: Run, other: Run, tolerance: float) -> str:
    """FQN of the innermost module in which a row first differs; ``loss_fn`` if none does.
    ``tolerance``: relative differences up to it are rounding."""
    name = type(model).__name__
    for before, after in zip(_events(model, one), _events(model, other), strict=False):
        if (before.fqn, before.comes_in) != (after.fqn, after.comes_in):
            return before.inside or name  # it calls its parts in another order
        pairs = zip(before.tensors, after.tensors, strict=False)
        if any(_differ(ours, theirs, tolerance) for ours, theirs in pairs):
            return before.inside or name
    return LOSS


def _events(model: nn.Module, run: Run) -> list[_Event]:
    forward, rows, row = run
    events: list[_Event] = []
    inside: list[str] = []
    handles = []

    def enters(fqn: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, named: Any) -> None:
            caller = inside[-1] if inside else LOSS
            given = _rows((arguments, named), rows, row)
            events.append(_Event(fqn, True, caller, tuple(given)))
            inside.append(fqn)

        return hook

    def leaves(fqn: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, result: Any) -> None:
            inside.pop()
            events.append(_Event(fqn, False, fqn, tuple(_rows(result, rows, row))))

        return hook

    for fqn, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enters(fqn), with_kwargs=True))
        handles.append(module.register_forward_hook(leaves(fqn)))
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return events


def _rows(value: Any, rows: int, row: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.dim() and len(value) and not len(value) % rows:
            yield value.detach().reshape(rows, -1)[row].double().cpu()
    elif isinstance(value, dict):
        for part in value.values():
            yield from _rows(part, rows, row)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _rows(part, rows, row)


def _differ(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    if ours.shape != theirs.shape:
        return False
    return not bool(torch.linalg.vector_norm(ours - theirs) <= tolerance * ours.norm())
