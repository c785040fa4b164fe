"""Parallel coordinates of a search's trials: axes, and where each trial crosses them. Pure.

An axis is a hyperparameter in which the trials differ; the last one is the result. Numbers that
span more than `DECADES` decades have a logarithmic axis, others a linear one. Other values have one
place each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from govray.platform.store.tables import Trial

MOST_AXES = 7
DECADES = 1.5


def parallel(trials: Sequence[Trial]) -> tuple[dict[str, Any] | None, str]:
    """What the drawing needs, and the name of the result; None if there is nothing to compare."""
    result = "objective" if any(trial.objective is not None for trial in trials) else "loss"
    values = [getattr(trial, result) for trial in trials]
    names = sorted({name for trial in trials for name in trial.hyperparameters})
    columns = {
        name: [trial.hyperparameters.get(name) for trial in trials]
        for name in names
        if len({str(trial.hyperparameters.get(name)) for trial in trials}) > 1
    }
    known = [value for value in values if value is not None]
    if not columns or not known:
        return None, result
    chosen = dict(list(columns.items())[: MOST_AXES - 1]) | {result: values}
    axes, places = [], []
    for name, column in chosen.items():
        marks, at = axis(column)
        axes.append({"name": name, "marks": marks})
        places.append(at)
    best = values.index(min(known))
    return {
        "axes": axes,
        "trials": [
            {"id": trial.id, "best": i == best, "at": [at[i] for at in places]}
            for i, trial in enumerate(trials)
        ],
    }, result


def axis(column: Sequence[object]) -> tuple[list[tuple[float, str]], list[float | None]]:
    """Marks (share of the axis, text), and each value's share in [0, 1]; None where it has none."""
    present = [value for value in column if value is not None]
    if present and all(_number(value) for value in present):
        return _scale([None if v is None else float(v) for v in column])  # type: ignore[arg-type]
    texts = sorted({str(value) for value in present})
    shares = {text: i / max(len(texts) - 1, 1) for i, text in enumerate(texts)}
    marks = [(share, text[:18]) for text, share in shares.items()]
    return marks, [None if value is None else shares[str(value)] for value in column]


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _scale(column: Sequence[float | None]) -> tuple[list[tuple[float, str]], list[float | None]]:
    present = [value for value in column if value is not None]
    low, high = min(present), max(present)
    log = low > 0 and math.log10(high / low) > DECADES
    read = math.log10 if log else float
    start, span = read(low), (read(high) - read(low)) or 1.0
    marks = [(0.0, f"{low:.4g}")] + ([(1.0, f"{high:.4g}")] if high > low else [])
    return marks, [None if v is None else round((read(v) - start) / span, 4) for v in column]
