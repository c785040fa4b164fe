"""The route planner: which rows of a step go through the model together, and how.

Every pass is one forward and one backward over rows of one domain. The methods,
all exact, from cheap to expensive for many streams:

``staircase``    for routes that permit a block, all above it and nothing below,
                 with one weight: their rows share every kernel call above the entry
``homogeneous``  for any route: the rows of one stream alone, the backward cut by
                 ``requires_grad``

Both do the same arithmetic for suffix routes; a staircase does it in fewer and
larger kernel calls, and writes each gradient once. Where a model does not lend
itself to the staircase (``trial.py`` finds out), the planner is told so.

Invariants: rows of different domains are never in one pass. The passes of a domain
are a function of that domain's rows alone. Domains come in one order on all ranks.

What it does not do: run anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from govray.engine.batch import MicroBatch
from govray.engine.routing import Routed


@dataclass(frozen=True)
class Pass:
    """Rows of one domain that go through the model together.

    Attributes:
        parts: By entry, lowest first; one part unless the pass is a staircase.
        entries: Of each part: FQN of the module below which its route permits
            nothing, None if it permits everything or can't be a stair.
        weights: Parameter name → weight, of all that the pass may update. In a
            staircase a part's weight is in ``shares`` instead.
        shares: What each part's losses are multiplied with.
        adapter: What the forward reads beside the model.
    """

    parts: tuple[MicroBatch, ...]
    entries: tuple[str | None, ...]
    weights: Mapping[str, float]
    shares: tuple[float, ...]
    adapter: str | None

    @property
    def is_staircase(self) -> bool:
        """Whether parts enter at different places."""
        return len(set(self.entries)) > 1

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Those of all parts, in order."""
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

    def alone(self, routed: Mapping[str, Routed]) -> tuple[Pass, ...]:
        """The same rows, each part in a pass of its own."""
        return tuple(homogeneous(part, routed[part.stream]) for part in self.parts)


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
    # A tied tensor, or a group that the policy names, may be used anywhere.
    standard = all(
        group in ("embedding", "final_norm", "head") or group.startswith("block.")
        for group in order
    )
    if not standard or not order[place].startswith("block."):
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
    """

    def __init__(
        self,
        routed: Mapping[str, Routed],
        groups: Mapping[str, Sequence[str]],
        domains: Sequence[frozenset[str]],
        max_rows: int | None,
    ) -> None:
        self._routed = routed
        self._max_rows = max_rows
        self._domain_of = {
            stream: next(place for place, members in enumerate(domains) if route.groups <= members)
            for stream, route in routed.items()
        }
        found = {stream: entry(route, groups) for stream, route in routed.items()}
        self._entries = {stream: place for stream, place in found.items() if place is not None}
        self.reason: str | None = None

    def without_staircase(self, reason: str) -> None:
        """From now on every stream is routed by itself.

        Args:
            reason: Why, for people; kept in ``reason``.
        """
        self._entries = {}
        self.reason = reason

    def passes(self, micro_batches: Sequence[MicroBatch]) -> list[Pass]:
        """The passes of one rank's rows, by domain."""
        planned: list[Pass] = []
        for domain in sorted({self._domain_of[each.stream] for each in micro_batches}):
            own = [each for each in micro_batches if self._domain_of[each.stream] == domain]
            stairs = [each for each in own if each.stream in self._entries]
            for joined in _alike(stairs):
                planned += self._staircases(joined)
            planned += [
                homogeneous(piece, self._routed[each.stream])
                for each in own
                if each.stream not in self._entries
                for (piece,) in _chunks([each], self._max_rows)
            ]
        return planned

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
    room = max_rows
    for part in parts:
        start = 0
        while start < len(part.positions):
            piece = part.cut(start, start + room)
            chunk.append(piece)
            start += len(piece.positions)
            room -= len(piece.positions)
            if not room:
                yield tuple(chunk)
                chunk, room = [], max_rows
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
