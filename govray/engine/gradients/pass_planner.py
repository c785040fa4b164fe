"""The route planner: which rows of a step go through the model together, and how.

Every pass is one forward and one backward over rows of one domain. The methods,
all exact:

``sliced``       for any routes that read the same adapter, or none: all rows share the
                 forward, and backward takes each gradient from the permitted rows
``homogeneous``  for any route: the rows of one stream alone, the backward cut by
                 ``requires_grad``

Both do the same matrix products. A sliced pass does them in fewer and larger kernel calls, and
writes each gradient once, but carries rows through layers that teach them nothing. It is planned
where it is estimated to pay. ``pass_check.py`` finds out whether a model allows
it, and tells the planner.

A domain that torch's DDP or FSDP2 hosts differs: every backward has to reach every parameter.
Passes of a model that lends itself to it are all sliced there, for their Functions are edges to
every parameter. Others are homogeneous, and say in ``reaches`` what the host waits for.

Invariants: rows of different domains are never in one pass. The passes of a domain
are a function of that domain's rows alone. Domains come in one order on all ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from govray.engine.batch import MicroBatch
from govray.engine.gradients.row_weights import RowWeights
from govray.engine.steps.routed import Routed

Method = Literal["homogeneous", "sliced"]


@dataclass(frozen=True)
class Pass:
    """Rows of one domain that go through the model together.

    Attributes:
        parts: One part if the pass is homogeneous.
        weights: Parameter name → weight, of all that the pass may update. In a sliced pass a
            part's own weight is in ``slices``.
        adapter: What the forward reads beside the model.
        slices: Of a sliced pass: what each part may do at every parameter of the base
            model that may learn. None in other passes.
        reaches: Of a homogeneous pass that torch hosts: every parameter that the host holds.
        held: The tensors of all parts, where these are views of them.
    """

    parts: tuple[MicroBatch, ...]
    weights: Mapping[str, float]
    adapter: str | None
    slices: Mapping[str, Slices] | None = None
    reaches: tuple[str, ...] = ()
    held: Mapping[str, Tensor] | None = None

    @property
    def method(self) -> Method:
        """How its rows go through the model."""
        return "homogeneous" if self.slices is None else "sliced"

    @property
    def row_weights(self) -> dict[str, RowWeights]:
        part_of = [index for index, part in enumerate(self.parts) for _ in part.positions]
        slices = self.slices or {}
        distinct = {
            each: RowWeights.of(
                [each.weights[index] for index in part_of], [each.flow[index] for index in part_of]
            )
            for each in set(slices.values())
        }
        return {name: distinct[each] for name, each in slices.items()}

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """The rows' tensors by name, each (rows, …): parts in order, in their dtype and device."""
        if self.held is not None:
            return self.held
        first, *others = self.parts
        if not others:
            return first.tensors
        return {
            name: torch.cat([part.tensors[name] for part in self.parts]) for name in first.tensors
        }

    def holding(self, tensors: Mapping[str, Tensor]) -> Pass:
        """A pass of the same rows whose ``tensors`` are these. Its parts hold views of them."""
        parts = tuple(
            replace(part, tensors={name: t[start:stop] for name, t in tensors.items()})
            for part, (start, stop) in zip(self.parts, self.spans, strict=True)
        )
        return replace(self, parts=parts, held=tensors)

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Of each row: its stream and its position in the stream's quota."""
        return tuple((part.stream, p) for part in self.parts for p in part.positions)

    @property
    def masked(self) -> bool:
        """Whether some positions are no loss targets."""
        return sum(part.targets for part in self.parts) < self.tensors["targets"].numel()

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Of each part: its half-open range of rows."""
        spans, start = [], 0
        for part in self.parts:
            spans.append((start, start + len(part.positions)))
            start += len(part.positions)
        return tuple(spans)


def homogeneous(part: MicroBatch, routed: Routed) -> Pass:
    """The pass of one stream's rows alone."""
    return Pass((part,), routed.weights, routed.adapter)


class Planner:
    """Puts the rows of a step into passes.

    Args:
        groups: Layer group → FQNs of the base model, in canonical order.
        domains: The layer groups of each domain, in the order of the passes.
        max_rows: Rows of a pass at most; None for no limit.
        sizes: Parameter of the base model that may learn → its numbers.
        hosted: Places of the domains in which every backward has to reach every parameter.

    Attributes:
        unsliced: Why no sliced pass is planned; None while they are.
    """

    def __init__(
        self,
        routed: Mapping[str, Routed],
        groups: Mapping[str, Sequence[str]],
        domains: Sequence[frozenset[str]],
        max_rows: int | None,
        sizes: Mapping[str, int],
        hosted: Collection[int] = (),
    ) -> None:
        self._routed = routed
        self._groups = groups
        self._max_rows = max_rows
        self._sizes = sizes
        self._hosted = frozenset(hosted)
        # Of streams that fall due together, which most steps have alike.
        self._slices = lru_cache(maxsize=64)(
            lambda *routes: slices_of([routed[route] for route in routes], groups, tuple(sizes))
        )
        place_of = {group: place for place, members in enumerate(domains) for group in members}
        # All of a route's groups are in one domain.
        self._domain_of = {s: place_of[next(iter(route.groups))] for s, route in routed.items()}
        self.unsliced: str | None = None

    def domain_of(self, each: Pass) -> int:
        return self._domain_of[each.parts[0].route]

    def stream_of(self, domain: int) -> str:
        """One of a domain's streams, the same on all ranks."""
        return min(stream for stream, place in self._domain_of.items() if place == domain)

    def passes(self, micro_batches: Sequence[MicroBatch]) -> list[Pass]:
        """The passes of one rank's rows, by domain."""
        planned: list[Pass] = []
        for domain in sorted({self._domain_of[each.route] for each in micro_batches}):
            own = [each for each in micro_batches if self._domain_of[each.route] == domain]
            for joined in self._joinable(own):
                if domain in self._hosted and self.unsliced is None:
                    planned += map(self.sliced, _chunks(joined, self._max_rows))
                else:
                    planned += self._sliced_or_alone(joined)
        return planned

    def sliced(self, parts: Sequence[MicroBatch]) -> Pass:
        """One pass over rows of any streams that read the same adapter, or none."""
        routed = [self._routed[part.route] for part in parts]
        slices = self._slices(*(part.route for part in parts))
        hosted = self._is_hosted(parts[0])
        names = [*(slices if hosted else ()), *(name for route in routed for name in route.weights)]
        return Pass(
            parts=tuple(parts),
            weights=dict.fromkeys(names, 1.0),
            adapter=routed[0].adapter,
            slices=slices,
        )

    def instead(self, each: Pass) -> tuple[Pass, ...]:
        """The same rows in passes that need no trial."""
        if each.slices is not None and self.unsliced is None and self._is_hosted(each.parts[0]):
            return (replace(each, slices={n: s.everywhere() for n, s in each.slices.items()}),)
        return tuple(map(self._alone, each.parts))

    def tried(self, rows: Sequence[MicroBatch], *, sliced: bool) -> Pass:
        """Rows of one stream in one pass, for a trial of all ranks.
        ``sliced``: as they train, if that is sliced; else as if it were not."""
        if sliced and self.unsliced is None and self._is_hosted(rows[0]):
            (each,) = self.instead(self.sliced(rows))
            return each
        return replace(self._alone(rows[0]), parts=tuple(rows))

    def _alone(self, part: MicroBatch) -> Pass:
        each = homogeneous(part, self._routed[part.route])
        return replace(each, reaches=tuple(self._sizes)) if self._is_hosted(part) else each

    def _is_hosted(self, part: MicroBatch) -> bool:
        return self._domain_of[part.route] in self._hosted

    def _sliced_or_alone(self, parts: Sequence[MicroBatch]) -> Iterator[Pass]:
        if len(parts) > 1 and self.unsliced is None and self._pays(parts):
            for chunk in _chunks(parts, self._max_rows):
                yield self.sliced(chunk) if len(chunk) > 1 else self._alone(chunk[0])
            return
        for part in parts:
            for (piece,) in _chunks([part], self._max_rows):
                yield self._alone(piece)

    def _pays(self, parts: Sequence[MicroBatch]) -> bool:
        tokens = [part.tensors["targets"].numel() for part in parts]
        return slicing_pays(tokens, self._slices(*(part.route for part in parts)), self._sizes)

    def _joinable(self, parts: Sequence[MicroBatch]) -> Iterator[list[MicroBatch]]:
        """Those that a sliced pass can join, neighbours as alike as may be."""
        order = tuple(self._groups)
        by_adapter: dict[str | None, list[MicroBatch]] = {}
        for part in parts:
            by_adapter.setdefault(self._routed[part.route].adapter, []).append(part)
        for adapter in sorted(by_adapter, key=lambda name: name or ""):
            for joined in _alike(by_adapter[adapter]):
                yield sorted(
                    joined,
                    key=lambda part: (
                        floor(self._routed[part.route], order),
                        part.route,
                        part.stream,
                    ),
                )


def _chunks(parts: Sequence[MicroBatch], max_rows: int | None) -> Iterator[tuple[MicroBatch, ...]]:
    """Consecutive rows, at most ``max_rows`` together."""
    if max_rows is None:
        yield tuple(parts)
        return
    chunk: list[MicroBatch] = []
    rows_left = max_rows
    for part in parts:
        start = 0
        while start < len(part.positions):
            piece = part.cut(start, start + rows_left)
            chunk.append(piece)
            start += len(piece.positions)
            rows_left -= len(piece.positions)
            if not rows_left:
                yield tuple(chunk)
                chunk, rows_left = [], max_rows
    if chunk:
        yield tuple(chunk)


def _alike(parts: Sequence[MicroBatch]) -> list[list[MicroBatch]]:
    """Those whose tensors can be put behind each other, together."""
    by_shape: dict[tuple[object, ...], list[MicroBatch]] = {}
    for part in parts:
        shape = tuple(
            (name, tuple(tensor.shape[1:]), tensor.dtype, tensor.device)
            for name, tensor in sorted(part.tensors.items())
        )
        by_shape.setdefault(shape, []).append(part)
    return list(by_shape.values())


WRITE_TOKENS = 64.0
"""How many tokens, carried between the matrices of a layer in backward, cost as much as adding
one more gradient to each of its parameters.

On a CPU a sliced pass and a pass for each stream are about even (``governed_sliced`` and
``governed`` of ``python -m benchmarks.step``).
So the value is cautious: a sliced pass has to save many gradients before it is chosen."""


# What the parts of a sliced pass may do at each parameter, and whether such a pass pays.
#
# A sliced pass (``sliced_pass.py``) takes rows of several route streams through the model together.
# Which of them a parameter learns from follows from their routes. The order of the layer groups,
# bottom first, decides which of them need a gradient through a layer. They are those that learn in
# the layer's own group, or in one below it. It says nothing of a tensor tied between two groups, of
# a policy's own group, or of an adapter, which sits in every block. There all rows are taken to
# need a gradient, which costs time and no exactness.
#
# The model itself is not looked at. If it calls its layers in another order, the trial
# (``pass_check.py``) finds other gradients.


@dataclass(frozen=True)
class Slices:
    """What each part of a sliced pass may do at one parameter.

    Attributes:
        weights: Its route's weight; 0 where it is forbidden.
        flow: Whether it learns here or below.
    """

    weights: tuple[float, ...]
    flow: tuple[bool, ...]

    def everywhere(self) -> Slices:
        """The same weights, and a gradient through the layer for every part: always exact."""
        return Slices(self.weights, (True,) * len(self.flow))


def in_order(groups: Sequence[str]) -> bool:
    """Whether every layer group is used at one place only, bottom first."""
    return all(
        group in ("embedding", "final_norm", "head") or group.startswith("block.")
        for group in groups
    )


def floor(routed: Routed, groups: Sequence[str]) -> int:
    """Place of the lowest layer group that rows of a route learn in; 0 where that is unknown.
    ``groups``: those of the base model, in canonical order."""
    if routed.adapter is not None or not in_order(groups):
        return 0
    return next(place for place, group in enumerate(groups) if group in routed.groups)


def slices_of(
    routes: Sequence[Routed], groups: Mapping[str, Sequence[str]], names: Sequence[str]
) -> dict[str, Slices]:
    """Parameter name → what each part may do there.

    Args:
        groups: Layer group → FQNs of the base model, in canonical order.
        names: The base model's parameters that may learn from some part, or in whose
            layers others must not.
    """
    place_of = {name: place for place, members in enumerate(groups.values()) for name in members}
    floors = [floor(route, tuple(groups)) for route in routes]
    return {
        name: Slices(
            tuple(route.weights.get(name, 0.0) for route in routes),
            tuple(lowest <= place_of[name] for lowest in floors),
        )
        for name in names
    }


def slicing_pays(
    tokens: Sequence[int], slices: Mapping[str, Slices], sizes: Mapping[str, int]
) -> bool:
    """Whether a sliced pass is estimated to cost less than its parts by themselves.

    The matrix products are the same. By itself every part adds a gradient to each parameter it may
    update. In a sliced pass neighbours of equal weight write one together, which is ``saved``. But
    the rows of a part that learns nowhere so low are carried through what is between the matrices
    wherever another part's are: ``carried``. That work grows with the tokens and, nearly, with the
    matrices.

    Args:
        tokens: Places for loss targets of each part: its rows times their length.
    """
    saved = carried = 0
    for name, each in slices.items():
        runs = [weight for weight, _ in groupby(each.weights) if weight]
        saved += sizes[name] * (sum(map(bool, each.weights)) - len(runs))
        if any(each.flow):
            carried += sizes[name] * sum(
                count for count, flows in zip(tokens, each.flow, strict=True) if not flows
            )
    return carried < WRITE_TOKENS * saved
