"""The FLOP ratio of a routed step, and the operations of the built-in GPT that it counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.cases import ADAPTER_RANK, Shape
from govray.governance.policy.route import ADAPTER, Route
from govray.train.watching.flops import Operation, row_flops


def gpt_operations(shape: Shape, adapters: Sequence[str] = ()) -> list[Operation]:
    """The operations of the built-in GPT, for rows of ``shape.tokens`` tokens."""
    width, tokens = shape.width, shape.tokens
    operations = [Operation(0, "embedding", 0.0)]
    place = 0

    def norm(group: str) -> None:
        nonlocal place
        place += 1
        operations.append(Operation(place, group, 0.0))

    def linear(group: str, inputs: int, outputs: int, adapted: bool = True) -> None:
        nonlocal place
        place += 1
        operations.append(Operation(place, group, 2.0 * tokens * inputs * outputs))
        if adapted:
            for name in adapters:
                for step, size in enumerate((inputs, outputs)):
                    flops = 2.0 * tokens * ADAPTER_RANK * size
                    operations.append(Operation(place + step, ADAPTER + name, flops))
            place += 1

    for index in range(shape.blocks):
        group = f"block.{index}"
        norm(group)
        linear(group, width, 3 * width)
        place += 1
        operations.append(Operation(place, None, 4.0 * tokens * tokens * width))
        linear(group, width, width)
        norm(group)
        linear(group, width, 4 * width)
        linear(group, 4 * width, width)
    norm("final_norm")
    linear("head", width, shape.vocabulary, adapted=False)
    return operations


def flop_ratio(operations: Sequence[Operation], streams: Sequence[tuple[int, Route]]) -> float:
    """F: the FLOPs of routing each stream as its route permits, divided by those of plain training.
    ``streams``: (rows, route) of each stream; at least one row."""
    beside = tuple(o for o in operations if o.group is None or not o.group.startswith(ADAPTER))
    plain = 3 * sum(o.flops for o in beside)
    rows = sum(count for count, _ in streams)
    return sum(count * row_flops(operations, route) for count, route in streams) / (plain * rows)


def case_ratio(shape: Shape, counts: Mapping[str, int], routes: Mapping[str, Route]) -> float:
    """F of a case, with the rows as split.

    Args:
        shape: Of the model.
        counts: Profile → rows over all ranks.
        routes: By profile.
    """
    streams = [(count, routes[profile]) for profile, count in counts.items()]
    adapters = [route.adapter for _, route in streams if route.adapter]
    return flop_ratio(gpt_operations(shape, adapters), streams)
