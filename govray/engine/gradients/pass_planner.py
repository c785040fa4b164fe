"""The route planner: which rows of a step go through the model together, and how.

Every pass is one forward and one backward over rows of one domain. The methods,
all exact:

``staircase``    for routes that permit a block, all above it and nothing below,
                 with one weight: their rows share every kernel call above the entry
``sliced``       for any routes that read the same adapter, or none: all rows share the
                 forward, and backward takes each gradient from the permitted rows
``homogeneous``  for any route: the rows of one stream alone, the backward cut by
                 ``requires_grad``

All do the same matrix products. A staircase does them in fewer and larger kernel calls, and
writes each gradient once. A sliced pass comes close to that for any routes, and is planned where
``pass_slices.py`` estimates that it pays. ``pass_check.py`` finds out which methods a model
allows, and tells the planner.

Invariants: rows of different domains are never in one pass. The passes of a domain
are a function of that domain's rows alone. Domains come in one order on all ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from govray.engine.batch import MicroBatch
from govray.engine.gradients.pass_slices import Slices, floor, in_order, slices_of, slicing_pays
from govray.engine.gradients.routing import Routed
from govray.engine.gradients.row_weights import RowWeights

Method = Literal["homogeneous", "staircase", "sliced"]


@dataclass(frozen=True)
class Pass:
    """Rows of one domain that go through the model together.

    Attributes:
        parts: By entry, lowest first; one part if the pass is homogeneous.
        entries: Of each part: FQN of the module below which its route permits
            nothing, None if it permits everything or can't be a stair.
        weights: Parameter name → weight, of all that the pass may update. A part's own
            weight is in ``shares`` in a staircase, in ``slices`` in a sliced pass.
        shares: What each part's losses are multiplied with.
        adapter: What the forward reads beside the model.
        slices: Of a sliced pass: what each part may do at every parameter of the base
            model that may learn. None in other passes.
    """

    parts: tuple[MicroBatch, ...]
    entries: tuple[str | None, ...]
    weights: Mapping[str, float]
    shares: tuple[float, ...]
    adapter: str | None
    slices: Mapping[str, Slices] | None = None

    @property
    def method(self) -> Method:
        """How its rows go through the model."""
        if self.slices is not None:
            return "sliced"
        return "staircase" if len(set(self.entries)) > 1 else "homogeneous"

    @property
    def row_weights(self) -> dict[str, RowWeights]:
        """What ``slices`` says, by row."""
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
        first, *others = self.parts
        if not others:
            return first.tensors
        return {
            name: torch.cat([part.tensors[name] for part in self.parts]) for name in first.tensors
        }

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Of each row: its stream and its position in the stream's quota."""
        return tuple((part.stream, p) for part in self.parts for p in part.positions)

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
    return Pass((part,), (None,), routed.weights, (1.0,), routed.adapter)


def entry(routed: Routed, groups: Mapping[str, Sequence[str]]) -> tuple[int, str] | None:
    """Where the rows of a route begin to learn, if the route is a staircase's.

    Args:
        routed: The route.
        groups: Layer group → FQNs of the base model, in canonical order.

    Returns:
        (0, "") if it permits every layer group; (place of the block's group, FQN of
        the block's module) if it permits that block and exactly what is above it;
        None if it is anything else, or has several weights, an adapter, or a model
        with tensors that are used both below and above.
    """
    order = list(groups)
    if routed.adapter is not None or len(set(routed.weights.values())) != 1:
        return None
    place = next(index for index, group in enumerate(order) if group in routed.groups)
    if routed.groups != set(order[place:]):
        return None
    if place == 0:
        return 0, ""
    if not in_order(order) or not order[place].startswith("block."):
        return None
    module = _common_module(groups[order[place]])
    return (place, module) if module else None


class Planner:
    """Puts the rows of a step into passes.

    Args:
        routed: Stream id → route in terms of parameters.
        groups: Layer group → FQNs of the base model, in canonical order.
        domains: The layer groups of each domain, in the order of the passes.
        max_rows: Rows of a pass at most; None for no limit.
        sizes: Parameter of the base model that may learn → its numbers.
        only_sliced: Places of the domains that no other method may serve, because
            every backward has to reach every parameter.
    """

    def __init__(
        self,
        routed: Mapping[str, Routed],
        groups: Mapping[str, Sequence[str]],
        domains: Sequence[frozenset[str]],
        max_rows: int | None,
        sizes: Mapping[str, int],
        only_sliced: Collection[int] = (),
    ) -> None:
        self._routed = routed
        self._groups = groups
        self._max_rows = max_rows
        self._sizes = sizes
        self._only_sliced = frozenset(only_sliced)
        place_of = {group: place for place, members in enumerate(domains) for group in members}
        # All of a route's groups are in one domain.
        self._domain_of = {s: place_of[next(iter(route.groups))] for s, route in routed.items()}
        found = {stream: entry(route, groups) for stream, route in routed.items()}
        self._entries = {stream: place for stream, place in found.items() if place is not None}
        self.reasons: dict[Method, str] = {}

    def without(self, method: Method, reason: str) -> None:
        """From now on use other methods where they serve.

        Args:
            method: ``staircase`` or ``sliced``.
            reason: Why, for people; kept in ``reasons``.
        """
        self.reasons[method] = reason

    def domain_of(self, each: Pass) -> int:
        """The place of a pass's domain."""
        return self._domain_of[each.parts[0].stream]

    def stream_of(self, domain: int) -> str:
        """One of a domain's streams, the same on all ranks."""
        return min(stream for stream, place in self._domain_of.items() if place == domain)

    def passes(self, micro_batches: Sequence[MicroBatch]) -> list[Pass]:
        """The passes of one rank's rows, by domain."""
        planned: list[Pass] = []
        for domain in sorted({self._domain_of[each.stream] for each in micro_batches}):
            own = [each for each in micro_batches if self._domain_of[each.stream] == domain]
            if domain in self._only_sliced:
                for joined in self._joinable(own):
                    planned += map(self.sliced, _chunks(joined, self._max_rows))
                continue
            entries = {} if "staircase" in self.reasons else self._entries
            for joined in _alike([each for each in own if each.stream in entries]):
                planned += self._staircases(joined)
            for joined in self._joinable([each for each in own if each.stream not in entries]):
                planned += self._sliced_or_alone(joined)
        return planned

    def sliced(self, parts: Sequence[MicroBatch]) -> Pass:
        """One pass over rows of any streams that read the same adapter, or none."""
        routed = [self._routed[part.stream] for part in parts]
        slices = slices_of(routed, self._groups, tuple(self._sizes))
        only = self._domain_of[parts[0].stream] in self._only_sliced
        names = [*(slices if only else ()), *(name for route in routed for name in route.weights)]
        return Pass(
            parts=tuple(parts),
            entries=(None,) * len(parts),
            weights=dict.fromkeys(names, 1.0),
            shares=(1.0,) * len(parts),
            adapter=routed[0].adapter,
            slices=slices,
        )

    def instead(self, each: Pass) -> tuple[Pass, ...]:
        """The same rows in passes that need no trial."""
        if self._domain_of[each.parts[0].stream] not in self._only_sliced:
            return tuple(homogeneous(part, self._routed[part.stream]) for part in each.parts)
        assert each.slices is not None
        return (replace(each, slices={n: s.everywhere() for n, s in each.slices.items()}),)

    def _sliced_or_alone(self, parts: Sequence[MicroBatch]) -> Iterator[Pass]:
        tokens = [part.tensors["targets"].numel() for part in parts]
        slices = self.sliced(parts).slices or {}
        if "sliced" not in self.reasons and slicing_pays(tokens, slices, self._sizes):
            for chunk in _chunks(parts, self._max_rows):
                alone = homogeneous(chunk[0], self._routed[chunk[0].stream])
                yield self.sliced(chunk) if len(chunk) > 1 else alone
            return
        for part in parts:
            for (piece,) in _chunks([part], self._max_rows):
                yield homogeneous(piece, self._routed[part.stream])

    def _joinable(self, parts: Sequence[MicroBatch]) -> Iterator[list[MicroBatch]]:
        """Those that a sliced pass can join, neighbours as alike as may be."""
        order = tuple(self._groups)
        by_adapter: dict[str | None, list[MicroBatch]] = {}
        for part in parts:
            by_adapter.setdefault(self._routed[part.stream].adapter, []).append(part)
        for adapter in sorted(by_adapter, key=lambda name: name or ""):
            for joined in _alike(by_adapter[adapter]):
                yield sorted(
                    joined,
                    key=lambda part: (floor(self._routed[part.stream], order), part.stream),
                )

    def _staircases(self, parts: Sequence[MicroBatch]) -> Iterator[Pass]:
        by_entry = sorted(parts, key=lambda part: (self._entries[part.stream][0], part.stream))
        for chunk in _chunks(by_entry, self._max_rows):
            if len(chunk) == 1:
                yield homogeneous(chunk[0], self._routed[chunk[0].stream])
                continue
            routed = [self._routed[part.stream] for part in chunk]
            yield Pass(
                parts=chunk,
                entries=tuple(self._entries[part.stream][1] or None for part in chunk),
                weights={name: 1.0 for route in routed for name in route.weights},
                shares=tuple(next(iter(route.weights.values())) for route in routed),
                adapter=None,
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


def _common_module(fqns: Sequence[str]) -> str:
    """The innermost module that holds all these parameters."""
    paths = [fqn.split(".")[:-1] for fqn in fqns]
    common: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)
