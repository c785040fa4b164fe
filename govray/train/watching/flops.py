"""The analytic FLOP ratio of a governed step to plain training.

There are B rows of T tokens. Layer l has p_l weights. A_l is the number of rows with a permitted
weight below l, and P_l the number that may update l. Then

    F  =  Σ_l 2·T·p_l·(B + |A_l| + |P_l|)  /  Σ_l 6·T·p_l·B

because a layer costs 2·T·p_l a row in the forward pass. The gradient of its input costs as much
again, but only if something below is permitted. The gradient of its weights costs as much, too. The
denominator trains every row into every layer, without adapters.

"Below" refers to single operations. The norm before a linear layer has a weight, so if both are
permitted the layer's input gradient is needed. Attention has no weights; each of its two products
costs twice its forward when its inputs need gradients. LoRA's two products run for its class alone.

Not counted: lookups, elementwise work such as norms, fused attention's recomputation and skipped
positions, the optimizer, communication.

Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", §2.1, for 6 FLOPs a weight
and token. Chowdhery et al. 2022, "PaLM", appendix B, for attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from govray.governance.policy.route import ADAPTER, Route


@dataclass(frozen=True)
class Operation:
    """A matrix product in the forward pass, or a weight that makes one necessary.

    Attributes:
        place: Depth in the forward pass. An operation reads results of lower places.
        group: Layer group of its weights; None if it has none.
        flops: Forward cost of one row; 0 for what is not counted.
    """

    place: int
    group: str | None
    flops: float


def flop_ratio(operations: Sequence[Operation], streams: Sequence[tuple[int, Route]]) -> float:
    """F: the FLOPs of routing each stream as its route permits, divided by those of plain training.
    ``streams``: (rows, route) of each stream; at least one row."""
    plain = 3 * sum(o.flops for o in operations if not _of_adapter(o))
    rows = sum(count for count, _ in streams)
    return sum(count * row_flops(operations, route) for count, route in streams) / (plain * rows)


def row_flops(operations: Sequence[Operation], route: Route) -> float:
    """Forward and backward FLOPs of one row of a stream."""
    permitted = frozenset(route.groups)
    entry = min((o.place for o in operations if o.group in permitted), default=None)
    total = 0.0
    for operation in operations:
        if _of_adapter(operation) and operation.group not in permitted:
            continue
        products = 1
        if entry is not None and entry < operation.place:
            products += 2 if operation.group is None else 1
        if operation.group in permitted:
            products += 1
        total += products * operation.flops
    return total


def _of_adapter(operation: Operation) -> bool:
    return operation.group is not None and operation.group.startswith(ADAPTER)
