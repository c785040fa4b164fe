"""Passes as graphs: one call starts all kernels of a forward and its backward.

A pass of few rows keeps a GPU busy for less time than the host needs to start its kernels. A graph
holds them, and the tensors that they read and write. Passes are of one kind if they start the same
kernels: of one route, adapter and loss function, with equally many rows of one shape. Of a kind

1. the first pass runs as ever, which also lets libraries settle;
2. the second is captured, as if of another step, and then runs both ways: by its graph and as ever.
   Losses and gradients must have equal bits, or agree within rounding where kernels are not
   deterministic. What the pass computes from anything but its tensors, shows here;
3. in every other, the rows are copied into the graph's tensors, and the graph is launched. At its
   16th, 32nd, 64th … launch both are compared again, for what the pass reads may have changed.

Invariants:

* Gradients are added to ``.grad`` pass by pass, by the additions of a backward. So they have the
  same bits, whether other passes are launched or run.
* ``.grad`` is never a tensor of a graph: a kind may come several times in a step, and graphs share
  memory.
* A pass in which something is measured runs as ever, which its caller decides. So does one of a
  kind beyond the first ``_KINDS``, for each holds gradients of its own.
* A graph is made anew if a parameter or buffer lies elsewhere than when it was captured.

Only homogeneous passes are captured.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn

from govray.engine.gradients.forward import Forward, LossFn, PartLoss
from govray.engine.gradients.pass_check import distance
from govray.engine.gradients.pass_planner import Pass
from govray.engine.gradients.precision import coarsest, watch_dtypes
from govray.engine.graphs.cuda_graph import GraphCapture
from govray.engine.model.keyed_dropout import Keyed
from govray.errors import Refused

_KINDS = 256
"""Enough for the routes and adapters of a policy. Their gradients lie on the device for good."""

_ANOTHER_STEP = -1

_TRIED_AGAIN = 16
"""The launch from which on each power of two is compared."""

Kind = tuple[object, ...]
Gradients = Mapping[str, Tensor]
"""By parameter name; none for a parameter that the losses don't depend on."""


@dataclass(frozen=True)
class _PassGraph:
    """A graph with its tensors.

    Attributes:
        tensors: The rows', by name.
        keys: What their dropout masks are drawn from.
        part: The loss.
        gradients: All that the pass gives.
        launch: Fills loss and gradients.
        addresses: Of all that it reads beside these.
        loss_fn: What it computes.
    """

    tensors: Mapping[str, Tensor]
    keys: Tensor
    part: PartLoss
    gradients: Gradients
    launch: Callable[[], None]
    addresses: tuple[int, ...]
    loss_fn: LossFn


class PassGraphs:
    """The graphs of one model's passes.

    Args:
        forward: Runs passes.
        model: The base model.
        parameters: All parameters by name, adapters' included.
        keyed: The model's dropout.
        capture: Makes graphs.
    """

    def __init__(
        self,
        forward: Forward,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        keyed: Keyed,
        capture: GraphCapture,
    ) -> None:
        self._forward = forward
        self._model = model
        self._parameters = parameters
        self._keyed = keyed
        self._capture = capture
        self._graphs: dict[Kind, _PassGraph | None] = {}
        self._launches: dict[Kind, int] = {}

    def run(self, each: Pass, step: int, loss_fn: LossFn) -> tuple[PartLoss, list[str]] | None:
        """Do a pass, and add its gradients to ``.grad``.

        Args:
            each: The pass.
            step: The global step.
            loss_fn: The user's. One that is made anew for each step is never captured.

        Returns:
            Its loss, and the names of the parameters that have a gradient of it, the last one
            first. None if the pass has to run as ever.

        Raises:
            Refused: It can't be captured, or its graph computes otherwise than it does.
        """
        if each.method != "homogeneous":
            return None
        kind = self._kind(each, loss_fn)
        if kind not in self._graphs:
            if len(self._graphs) < _KINDS:
                self._graphs[kind] = None
            return None
        graph = self._graphs[kind]
        if graph is None or graph.addresses != self._addresses(each):
            graph = self._captured(each, loss_fn)
            self._launches[kind] = 0
        self._launches[kind] += 1
        launch = self._tried if _to_try(self._launches[kind]) else self._launched
        found = launch(graph, each, step)
        self._graphs[kind] = graph
        self._add(graph.gradients)
        return found, [*graph.gradients][::-1]

    def _kind(self, each: Pass, loss_fn: LossFn) -> Kind:
        shapes = tuple((name, t.shape, t.dtype, t.device) for name, t in each.tensors.items())
        # By equality where there is one: a bound method is another object each time.
        named = loss_fn if isinstance(loss_fn, Hashable) else id(loss_fn)
        return each.parts[0].route, shapes, each.masked, self._model.training, named

    def _addresses(self, each: Pass) -> tuple[int, ...]:
        read = chain(self._forward.reached([each]).values(), self._model.buffers())
        return tuple(tensor.data_ptr() for tensor in read)

    def _captured(self, each: Pass, loss_fn: LossFn) -> _PassGraph:
        """The graph of a pass like this one."""
        (part,) = each.parts
        tensors = {name: tensor.clone() for name, tensor in part.tensors.items()}
        keys = self._keyed.row_keys(_ANOTHER_STEP, each.rows).to(tensors["targets"].device)
        like = replace(each, parts=(replace(part, tensors=tensors),))
        (loss, gradients), launch = self._capture(
            lambda: self._forward.holding(like, _ANOTHER_STEP, keys),
            partial(self._computed, like, loss_fn),
        )
        loss = replace(loss, sum=loss.sum.detach())
        where = self._addresses(each)
        return _PassGraph(tensors, keys, loss, gradients, launch, where, loss_fn)

    def _computed(self, each: Pass, loss_fn: LossFn) -> tuple[PartLoss, Gradients]:
        """Loss and gradients of a pass; call it inside ``Forward.holding``."""
        (loss,) = self._forward.losses(each, loss_fn)
        return loss, self._gradients(loss, each)

    def _gradients(self, loss: PartLoss, each: Pass) -> Gradients:
        learning = [self._parameters[name] for name in each.weights]
        found = torch.autograd.grad(loss.sum, learning, allow_unused=True)
        return {name: g for name, g in zip(each.weights, found, strict=True) if g is not None}

    def _launched(self, graph: _PassGraph, each: Pass, step: int) -> PartLoss:
        """Launch a graph with the rows of this pass; the loss that it then holds."""
        (part,) = each.parts
        for name, tensor in part.tensors.items():
            graph.tensors[name].copy_(tensor)
        graph.keys.copy_(self._keyed.row_keys(step, each.rows), non_blocking=True)
        with self._keyed.rows(step, each.rows, graph.keys):
            graph.launch()
        held = graph.part
        return replace(
            held, sum=held.sum.clone(), targets=held.targets.clone(), stated=part.targets
        )

    def _tried(self, graph: _PassGraph, each: Pass, step: int) -> PartLoss:
        """The same, and the pass runs as ever too: they must agree.

        Raises:
            Refused: They don't.
        """
        with self._forward.holding(each, step):
            (loss,) = self._forward.losses(each, graph.loss_fn)
            dtypes = watch_dtypes([loss.sum]) | {loss.sum.dtype}
            expected = {"": loss.sum.detach(), **self._gradients(loss, each)}
        launched = self._launched(graph, each, step)
        found = {"": launched.sum, **graph.gradients}
        if torch.are_deterministic_algorithms_enabled():
            agree = all(map(torch.equal, found.values(), expected.values()))
        else:
            agree = distance(found, expected) <= coarsest(dtypes) ** 0.5
        if found.keys() != expected.keys() or not agree:
            raise Refused(
                f"a pass of stream {each.parts[0].route} gives other gradients when it is launched",
                where="cuda_graphs",
                do="Let model and loss_fn depend on their tensors alone, or leave cuda_graphs out",
            )
        return launched

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


def _to_try(launches: int) -> bool:
    power_of_two = launches & (launches - 1) == 0
    return launches == 1 or (launches >= _TRIED_AGAIN and power_of_two)
