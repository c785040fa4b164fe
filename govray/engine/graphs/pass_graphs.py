"""Passes as graphs: one call starts all kernels of a forward and its backward.

A pass of few rows keeps a GPU busy for less time than the host needs to start its kernels. A graph
holds them, and the tensors that they read and write. Passes are of one kind if they start the same
kernels. They have one loss function and the same routes, each with equally many rows of one shape.
Of a kind

1. the first pass runs as ever, which also lets libraries settle;
2. the second is captured, as if of another step and of rows of zeros. Then it runs both ways: by
   its graph and as ever. Loss and gradients must have equal numbers, or agree within rounding where
   kernels are not deterministic. What the pass computes from anything but its tensors shows here;
3. in every other, the rows are copied into the graph's tensors, and the graph is launched. At its
   16th, 32nd, … 512th launch, and then at each 512th, both are compared again: what the pass reads
   may have changed.

Invariants:

* Gradients are added to ``.grad`` pass by pass, by the additions of a backward. So they have the
  same bits, whether other passes are launched or run.
* ``.grad`` is never a tensor of a graph: a kind may come several times in a step, and graphs share
  memory.
* A graph that was not like its pass is never launched again.
* A pass that draws on the host is refused: what it drew when it was captured would stay.
* A pass in which something is measured runs as ever, which its caller decides. So does one whose
  rows are on another device, and one of a kind beyond the first ``_KINDS`` that were captured.
* A graph is made anew if a tensor or number that it read may be another one than when it was
  captured. Looked at are attributes of modules, the loss function's closure and the object that it
  belongs to, and containers in these. What such a tensor lies in is not freed before.

What Python does beside, such as logging, is not done when a graph is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, Protocol, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from govray.engine.gradients.forward import Forward, LossFn, PartLoss, total
from govray.engine.gradients.gradient_gap import Gradients, gaps, rounding
from govray.engine.gradients.pass_planner import Pass
from govray.engine.gradients.precision import coarsest, watch_dtypes
from govray.engine.model.keyed_dropout import Keyed
from govray.engine.model.rng_state import generators
from govray.engine.steps.row_difference import REPEATED, due_again, first_apart
from govray.errors import GovrayError, Refused, UsageError

_KINDS = 256
"""Enough for the routes and adapters of a policy. Their gradients lie on the device for good."""

_SEEN = 64
"""Kinds that came once and are remembered: a loss function may be another one in every step."""

_ANOTHER_STEP = -1

_DEPTH = 4
_PLAIN = (type(None), bool, int, float, complex, str, torch.dtype)
# What nn.Module itself keeps. Buffers and modes are seen to.
_MODULES_OWN = frozenset(vars(nn.Module()))

Kind = tuple[object, ...]


@dataclass
class _PassGraph:
    """A graph with its tensors.

    Attributes:
        tensors: The rows', by name, parts in order.
        keys: What their dropout masks are drawn from.
        launch: Fills losses and gradients.
        reads: What it reads beside these, as it was.
        storages: What the tensors among these lie in.
        launches: How often it was launched.
    """

    tensors: Mapping[str, Tensor]
    keys: Tensor
    parts: tuple[PartLoss, ...]
    gradients: Gradients
    launch: Callable[[], None]
    reads: tuple[object, ...]
    storages: list[torch.UntypedStorage]
    launches: int = 0


class PassGraphs:
    """The graphs of one model's passes.
    ``parameters``: all parameters by name, adapters' included."""

    def __init__(
        self,
        forward: Forward,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        keyed: Keyed,
        capture: GraphCapture,
    ) -> None:
        self._forward = forward
        self._modules = list(model.modules())
        self._device = next(model.parameters()).device
        self._parameters = parameters
        self._keyed = keyed
        self._capture = capture
        self._seen: dict[Kind, None] = {}
        self._graphs: dict[Kind, _PassGraph] = {}

    def run(
        self, each: Pass, step: int, loss_fn: LossFn
    ) -> tuple[tuple[PartLoss, ...], list[str]] | None:
        """Do a pass, and add its gradients to ``.grad``.

        Args:
            loss_fn: The user's. One that is made anew for each step is never captured.

        Returns:
            Its losses by part, and the names of the parameters that have a gradient of it, the last
            one first. None if the pass has to run as ever.
        """
        if self._elsewhere(each):
            return None
        kind = self._kind(each, loss_fn)
        graph = self._graphs.pop(kind, None)  # back in only if it does what it should
        if graph is None and not self._to_capture(kind):
            return None
        if graph is None or graph.reads != tuple(map(_as_it_is, self._beside(each, loss_fn))):
            graph = self._captured(each, loss_fn)
        graph.launches += 1
        if graph.launches == 1 or due_again(graph.launches):
            found = self._compared(graph, each, step, loss_fn)
        else:
            found = self._launched(graph, each, step)
        self._graphs[kind] = graph
        self._add(graph.gradients)
        return found, [*graph.gradients][::-1]

    def _elsewhere(self, each: Pass) -> bool:
        """Whether Python could read rows without waiting for the device."""
        return any(tensor.device != self._device for tensor in each.tensors.values())

    def _kind(self, each: Pass, loss_fn: LossFn) -> Kind:
        parts = tuple((part.route, len(part.positions)) for part in each.parts)
        shapes = tuple((name, t.shape, t.dtype) for name, t in each.tensors.items())
        modes = tuple(module.training for module in self._modules)
        # By equality where there is one: a bound method is a new object each time.
        named = loss_fn if isinstance(loss_fn, Hashable) else id(loss_fn)
        return parts, shapes, each.masked, modes, named

    def _to_capture(self, kind: Kind) -> bool:
        """Whether this kind came before, and there is room for one more graph."""
        if kind in self._seen:
            del self._seen[kind]
            return len(self._graphs) < _KINDS
        if len(self._seen) == _SEEN:
            del self._seen[next(iter(self._seen))]
        self._seen[kind] = None
        return False

    def _beside(self, each: Pass, loss_fn: LossFn) -> Iterator[object]:
        """Tensors and numbers that a pass may read beside its rows."""
        yield from self._forward.reached([each]).values()
        for module in self._modules:
            yield from (buffer for buffer in module._buffers.values() if buffer is not None)
            for name, value in vars(module).items():
                if name not in _MODULES_OWN:
                    yield from _inside(value, _DEPTH)
        yield from _inside(loss_fn, _DEPTH)

    def _captured(self, each: Pass, loss_fn: LossFn) -> _PassGraph:
        if torch.is_autocast_enabled(self._device.type) and torch.is_autocast_cache_enabled():
            raise UsageError(
                "the step is called under torch.autocast, whose cache keeps parameters' copies "
                "that a graph would read later",
                where="cuda_graphs",
                do="Enter autocast inside loss_fn, or use precision: bf16-mixed",
            )
        tensors = {name: torch.zeros_like(tensor) for name, tensor in each.tensors.items()}
        keys = self._keyed.row_keys(_ANOTHER_STEP, each.rows).to(self._device)
        like = each.holding(tensors)
        (losses, gradients), launch = self._capture(
            lambda: self._forward.holding(like, _ANOTHER_STEP, keys),
            partial(self._computed, like, loss_fn),
        )
        parts = tuple(replace(part, sum=part.sum.detach()) for part in losses)
        beside = list(self._beside(each, loss_fn))
        storages = [t.untyped_storage() for t in beside if _is_strided(t)]
        reads = tuple(map(_as_it_is, beside))
        return _PassGraph(tensors, keys, parts, gradients, launch, reads, storages)

    def _computed(self, each: Pass, loss_fn: LossFn) -> tuple[tuple[PartLoss, ...], Gradients]:
        """Losses and gradients of a pass; call it inside ``Forward.holding``."""
        parts = self._forward.losses(each, loss_fn)
        return parts, self._gradients(total(parts), each)

    def _gradients(
        self, loss: Tensor, each: Pass, factor: float | None = None, *, keep: bool = False
    ) -> Gradients:
        """Of a factor times the loss; it can be done again only if the graph behind it is kept."""
        learning = {name: p for name, p in self._parameters.items() if name in each.weights}
        begin = None if factor is None else torch.full_like(loss, factor)
        found = torch.autograd.grad(
            loss, [*learning.values()], begin, retain_graph=keep, allow_unused=True
        )
        return {name: g for name, g in zip(learning, found, strict=True) if g is not None}

    def _launched(self, graph: _PassGraph, each: Pass, step: int) -> tuple[PartLoss, ...]:
        """Launch a graph with the rows of this pass; the losses that it then holds."""
        for name, tensor in each.tensors.items():
            graph.tensors[name].copy_(tensor)
        graph.keys.copy_(self._keyed.row_keys(step, each.rows), non_blocking=True)
        with self._keyed.rows(step, each.rows, graph.keys):
            graph.launch()
        return tuple(
            replace(held, sum=held.sum.clone(), targets=held.targets.clone(), stated=part.targets)
            for held, part in zip(graph.parts, each.parts, strict=True)
        )

    def _compared(
        self, graph: _PassGraph, each: Pass, step: int, loss_fn: LossFn
    ) -> tuple[PartLoss, ...]:
        """The same, and the pass runs as ever too: they must agree."""
        with self._forward.holding(each, step):
            before = generators()
            losses = self._forward.losses(each, loss_fn)
            loss = total(losses)
            drawn = [name for name in before.drawn_until(generators()) if name != "cuda"]
            dtypes = watch_dtypes([loss])
            expected = self._gradients(loss, each, keep=True)
            repeated = [self._gradients(loss, each, factor, keep=True) for factor in REPEATED]
        if drawn:
            whose = "torch's CPU" if drawn[0] == "torch" else drawn[0]
            raise Refused(
                f"model or loss_fn draws from the generator of {whose}, and a graph would keep "
                "what it drew once",
                where="cuda_graphs",
                do="Draw on the device, or leave cuda_graphs out",
            )
        found = self._launched(graph, each, step)
        dtypes |= {loss.dtype} | {gradient.dtype for gradient in expected.values()}
        exact = torch.are_deterministic_algorithms_enabled()
        tolerance = 0.0 if exact else coarsest(dtypes) ** 0.5
        rounded = rounding(expected, repeated)
        both = (
            (_by_stream(losses), _by_stream(found)),
            (expected, graph.gradients),
        )
        for as_ever, launched in both:
            if apart := first_apart(gaps(as_ever, launched, rounded), tolerance):
                name, share = apart
                raise Refused(
                    f"{name} differs by {share:.1e} when a pass of stream "
                    f"{', '.join(part.route for part in each.parts)} is launched as a graph",
                    where="cuda_graphs",
                    do="Let model and loss_fn depend on their tensors alone, or leave "
                    "cuda_graphs out",
                )
        return found

    @torch.no_grad()
    def _add(self, gradients: Gradients) -> None:
        """Add gradients to ``.grad`` as a backward does, in a few calls."""
        fresh, held = list[tuple[Tensor, Tensor]](), list[tuple[Tensor, Tensor]]()
        for name, gradient in gradients.items():
            parameter = self._parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
                fresh.append((parameter.grad, gradient))
            else:
                held.append((parameter.grad, gradient))
        if fresh:
            sums, new = map(list, zip(*fresh, strict=True))
            torch._foreach_copy_(sums, new)
        if held:
            sums, new = map(list, zip(*held, strict=True))
            torch._foreach_add_(sums, new)


def _by_stream(losses: Iterable[PartLoss]) -> Gradients:
    """By what a message calls them."""
    return {f"the loss of part {place}": each.sum.detach() for place, each in enumerate(losses, 1)}


def _inside(value: Any, depth: int) -> Iterator[object]:
    """Tensors and plain values in an attribute, a container or a function."""
    parts: Iterable[Any] = ()
    if isinstance(value, (Tensor, *_PLAIN)):
        yield value
    elif isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        parts = (*cells, *(value.__defaults__ or ()), value.__kwdefaults__)
    elif isinstance(value, MethodType):
        own = value.__self__
        # A module's are looked at already, if it is the model's.
        parts = (value.__func__, None if isinstance(own, type) else getattr(own, "__dict__", None))
    elif isinstance(value, partial):
        parts = (value.func, value.args, value.keywords)
    if depth:
        for part in parts:
            yield from _inside(part, depth - 1)


def _is_strided(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.layout is torch.strided


def _as_it_is(value: object) -> object:
    """What differs where a graph would have to be another one."""
    if _is_strided(value):
        return value.data_ptr(), value.shape, value.stride()
    return id(value) if isinstance(value, Tensor) else (type(value), repr(value))


T = TypeVar("T")

Holding = Callable[[], AbstractContextManager[None]]
"""What has to hold while work is captured."""


# A CUDA graph holds the kernels that some code started, with the addresses that they read and
# write. All graphs of one capture share the memory that their kernels pass on among themselves. So
# what a graph leaves in its results holds until another one of them is launched.
#
# Source: the CUDA Programming Guide, "CUDA Graphs"; ``torch.cuda.graph``.


class GraphCapture(Protocol):
    """Makes a graph of work."""

    def __call__(self, holding: Holding, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Capture work that reads and writes tensors which stay where they are.

        Returns:
            What the work returned, whose tensors mean nothing yet; and the launch, which fills
            them.
        """
        ...


class CudaCapture:
    """Makes graphs of the device that a model is on."""

    def __init__(self, model: nn.Module) -> None:
        self._device = next(model.parameters()).device
        if self._device.type != "cuda":
            raise UsageError(
                f"the model is on {self._device}, and graphs are of a GPU",
                where="cuda_graphs",
                do="Give workers a GPU by resources.gpus_per_worker, or leave cuda_graphs out",
            )
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, holding: Holding, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Capture work. Nothing runs yet. Raises ``GovrayError``: what the work raises; `Refused`
        if it waits for the device, or does another thing that no graph can hold."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            try:
                # Other threads copy batches and watch collectives meanwhile.
                mode = "thread_local"
                with holding(), torch.cuda.graph(graph, self._pool, capture_error_mode=mode):
                    found = work()
            except RuntimeError as error:
                cause = _first(error)
                if isinstance(cause, GovrayError | torch.OutOfMemoryError):
                    raise cause from None
                raise Refused(
                    f"a pass can't be captured: {str(cause).partition(chr(10))[0]}",
                    where="cuda_graphs",
                    do="Let model and loss_fn read no number of the device and copy nothing to "
                    "it, or leave cuda_graphs out. Start a new process: this one's generators "
                    "may fail",
                ) from error
            finally:
                torch.cuda.set_stream(stream)  # a capture that fails to end leaves its own
        return found, graph.replay


def _first(error: BaseException) -> BaseException:
    """What went wrong first: ending the capture then fails too, and says less."""
    found, before = error, error.__context__
    while before is not None:
        if isinstance(before, RuntimeError | GovrayError):
            found = before
        before = before.__context__
    return found
