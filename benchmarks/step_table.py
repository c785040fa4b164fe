"""Methods of a step beside a reference: one row each of the table that a step benchmark prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.intervals import Paired, paired_ratio
from benchmarks.rounds import LEDGER, Seconds


@dataclass(frozen=True)
class Row:
    """One method in one case.

    Attributes:
        seconds: Median of a step.
        tokens_per_second: Loss targets of all ranks' rows, in that time.
        time: Of a step, relative to the reference.
        memory: Peak live tensor bytes, likewise; None if not measured.
    """

    seconds: float
    tokens_per_second: float
    time: Paired
    memory: float | None


def rows_of(
    seconds: Seconds, memory: Mapping[str, float | None], tokens: int, reference: str
) -> dict[str, Row]:
    """Method → its row.

    Args:
        seconds: Of the steps.
        memory: Method → relative peak.
        tokens: Loss targets of a step.
        reference: The method that all are compared with.
    """
    rows = {}
    for method, times in seconds.items():
        ratio = paired_ratio(times, seconds[reference])
        assert ratio is not None
        step = median(t for t in times if t is not None)
        rows[method] = Row(step, tokens / step, ratio, memory.get(method))
    return rows


def by_method(rows: Mapping[str, Row], versus: str) -> dict[str, Any]:
    """Method → its figures, for the last line; ``versus`` names what they are relative to."""
    return {
        name: {
            "seconds": row.seconds,
            "tokens_per_second": row.tokens_per_second,
            versus: row.time.median,
            f"{versus}_interval": list(row.time.interval),
            "pairs": row.time.pairs,
            "memory": row.memory,
        }
        for name, row in rows.items()
        if name != LEDGER
    }


def table(
    report: Mapping[str, Mapping[str, Row]], ratios: Mapping[str, float], reference: str
) -> str:
    """One line for each method of each case.

    Args:
        report: Case → method → row.
        ratios: F of each case.
        reference: What the reference is called.
    """
    head = f"{'case':<14}{'method':<26}{'step':>9}{'tokens/s':>11}{'÷ ' + reference:>8}  "
    lines = [head + f"{'95 % interval':<16}{'pairs':>5}{'memory':>9}{'FLOPs':>8}"]
    for case, rows in report.items():
        for name, row in rows.items():
            low, high = row.time.interval
            memory = "-" if row.memory is None else f"{row.memory:.3f}"
            flops = f"{ratios[case]:.3f}" if name == "governed" else ""
            tokens = "" if name == LEDGER else f"{row.tokens_per_second:,.0f}"
            lines.append(
                f"{case:<14}{name:<26}{row.seconds * 1e3:>6.0f} ms{tokens:>11}"
                f"{row.time.median:>8.3f}  "
                f"{f'{low:.3f} … {high:.3f}':<16}{row.time.pairs:>5}{memory:>9}{flops:>8}"
            )
    return "\n".join(lines)
