"""Named reductions: one number out of what each rank reports, equal on all ranks.

Sums are float64, in the order of ranks. A rank that lacks a metric, or reports something else than
a number, makes all ranks raise the same error.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import torch

from govray.engine.collective.agreement import Agreement
from govray.errors import Refused, UsageError, suggestion

Reduction = Literal["mean", "sum", "min", "max", "last"]
"""``last`` takes what rank 0 reported last, as a plain report does."""

REDUCTIONS: dict[Reduction, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: math.fsum(values) / len(values),
    "sum": math.fsum,
    "min": min,
    "max": max,
    "last": lambda values: values[0],
}


def reduced(
    agreement: Agreement,
    metrics: Mapping[str, object],
    by: Mapping[str, Reduction],
    *,
    where: str,
) -> dict[str, float]:
    """These metrics over all ranks. Collective, with the same result on all.
    Raises ``Refused``: on all ranks: one of them does not report a metric, or reduces others."""
    if odd := sorted(set(by.values()) - REDUCTIONS.keys()):
        known = get_args(Reduction)
        raise UsageError(
            f"no reduction is called {odd[0]!r}{suggestion(odd[0], known)}",
            where="reduce",
            do=f"There are {', '.join(known)}",
        )
    names = sorted(by)
    missing = [name for name in names if not _is_number(metrics.get(name))]
    digest = hashlib.sha256(repr([(name, by[name]) for name in names]).encode()).digest()
    own = torch.tensor([len(missing), int.from_bytes(digest[:6], "big")], dtype=torch.int64)
    if any(int(row[0]) or int(row[1]) != int(own[1]) for row in agreement.exchange(own)):
        _raise(agreement, metrics, by, missing, where)
    numbers = [metrics[name] for name in names]
    values = [float(each) for each in numbers if isinstance(each, int | float)]
    rows = [row.tolist() for row in agreement.exchange(torch.tensor(values, dtype=torch.float64))]
    return {
        name: _finite(REDUCTIONS[by[name]], [row[at] for row in rows])
        for at, name in enumerate(names)
    }


def _raise(
    agreement: Agreement,
    metrics: Mapping[str, object],
    by: Mapping[str, Reduction],
    missing: Sequence[str],
    where: str,
) -> None:
    reported = sorted(name for name, value in metrics.items() if _is_number(value))
    text = ""
    if missing:
        text = (
            f"it reports no number {missing[0]!r}{suggestion(missing[0], reported)}, "
            f"but {', '.join(reported) or 'nothing'}"
        )
    said = agreement.texts(text)
    reduces = agreement.texts(", ".join(f"{name} by {by[name]}" for name in sorted(by)))
    for rank, each in enumerate(said):
        if each:
            raise Refused(
                f"rank {rank}: {each}",
                where=where,
                do="Report the metric on every rank, whenever it is due",
            )
    rank, other = next((r, each) for r, each in enumerate(reduces) if each != reduces[0])
    raise Refused(
        f"rank 0 reduces {reduces[0]}, rank {rank} {other}",
        where=where,
        do="Give report() the same reductions on every rank",
    )


def _finite(reduction: Callable[[Sequence[float]], float], values: Sequence[float]) -> float:
    return reduction(values) if all(map(math.isfinite, values)) else math.nan


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
