"""Which trial is better: constrained domination of loss by memorization, also as one number.

Of two trials, the one within the limit wins. Between two within it, the lower loss wins. Between
two above it, the smaller violation v = max(0, M - tau) wins. So a trial that memorizes never beats
one that does not, whatever the scale of the loss. Rescaling the loss changes no rank.

Ray Tune's schedulers and Optuna need one number to minimize: ``loss / (1 + loss)`` if v = 0,
``1 + v`` otherwise. It keeps the order, except that losses above about 1e15 tie. With tau infinite
the number is the loss itself.

It fails closed: a limit without a measurement, a loss below 0, and NaN rank last.

The order is that of Deb, "An efficient constraint handling method for genetic algorithms" (2000).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

WORST = math.inf
"""The objective of a trial that cannot be judged."""

_BELOW_ONE = math.nextafter(1.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class TrialReport:
    """One report of a trial.

    Attributes:
        step: Steps done.
        loss: The search's metric, in its own unit.
        memorization: M, in the unit that the search declares; None if not measured.
        v: The violation max(0, M - tau).
        objective: The number that the search minimizes.
    """

    step: int
    loss: float
    memorization: float | None
    v: float
    objective: float

    def to_result(self) -> dict[str, float]:
        """The fields as in Ray Tune's result; M is absent if not measured."""
        found = {
            "step": self.step,
            "loss": self.loss,
            "memorization": self.memorization,
            "v": self.v,
            "objective": self.objective,
        }
        return {name: value for name, value in found.items() if value is not None}


def report(
    *,
    step: int,
    loss: float,
    memorization: float | None,
    tau: float = math.inf,
    penalty: float | None = None,
) -> TrialReport:
    """Judge one measurement.

    Args:
        step: Steps done.
        loss: The search's metric.
        memorization: M, or None if not measured.
        tau: The limit of M; infinite for none.
        penalty: Order by ``loss + penalty * v`` instead, for comparison.
    """
    v = violation(memorization, tau)
    if penalty is not None:
        value = penalized(loss, v, penalty)
    else:
        value = loss if math.isinf(tau) else governed(loss, v)
    return TrialReport(
        step=step,
        loss=loss,
        memorization=memorization,
        v=v,
        objective=WORST if math.isnan(value) else value,
    )


def violation(memorization: float | None, tau: float) -> float:
    """How far M is above the limit: 0 within it or without one, infinite if M is unknown."""
    if math.isinf(tau):
        return 0.0
    if memorization is None or math.isnan(memorization):
        return math.inf
    return max(0.0, memorization - tau)


def sort_key(loss: float, v: float) -> tuple[bool, float]:
    """The governed order as a sort key: less is better."""
    if not (math.isfinite(loss) and loss >= 0 and math.isfinite(v)):
        return (True, WORST)
    return (v > 0, v if v > 0 else loss)


def governed(loss: float, v: float) -> float:
    """The governed order as one number, 0 or more: less is better."""
    above, value = sort_key(loss, v)
    # The bounds keep the two sides apart where floats would round to the same value.
    return 1.0 + value if above else min(value / (1.0 + value), _BELOW_ONE)


def penalized(loss: float, v: float, weight: float) -> float:
    """``loss + weight * v``, for comparison. Scales decide whether it keeps a memorizer out."""
    value = loss + weight * v
    return WORST if math.isnan(value) else value


@dataclass(frozen=True)
class Conclusion:
    """How a search ends.

    Attributes:
        best: The best trial within the limit; None if there is none.
        front: Trials that no other beats in both loss and M, by ascending loss.
        lowest_loss: The trial of the lowest loss, whatever it memorizes; None if no trial has a
            loss.
        why: Why the lowest loss lost, if it did.
    """

    best: str | None
    front: tuple[str, ...]
    lowest_loss: str | None
    why: str | None


def conclude(reports: Mapping[str, TrialReport]) -> Conclusion:
    """Judge the last reports of all trials, by trial name; ties go to the name that sorts first."""
    usable = {
        name: each
        for name, each in sorted(reports.items())
        if math.isfinite(each.loss) and each.loss >= 0
    }
    within = {name: each for name, each in usable.items() if each.v == 0}
    best = min(within, key=lambda name: within[name].loss, default=None)
    lowest = min(usable, key=lambda name: usable[name].loss, default=None)
    why = None
    if lowest is not None and lowest != best:
        lost = usable[lowest]
        why = (
            "its memorization was not measured"
            if lost.memorization is None or math.isnan(lost.memorization)
            else f"it memorizes: M {lost.memorization:.4g} is {lost.v:.4g} above the limit"
        )
    return Conclusion(best, pareto_front(usable), lowest, why)


def pareto_front(reports: Mapping[str, TrialReport]) -> tuple[str, ...]:
    """The trials that no other beats in loss and M at once, by ascending loss.

    Trials whose loss or M is NaN are left out. Without a limit M may be unknown everywhere; then
    the front is empty.
    """
    measured = {
        name: (each.loss, each.memorization)
        for name, each in reports.items()
        if each.memorization is not None
        and math.isfinite(each.loss)
        and math.isfinite(each.memorization)
    }
    front: list[str] = []
    least: tuple[float, float] | None = None  # the front's lowest M so far, and its loss
    for name, (loss, m) in sorted(measured.items(), key=lambda item: (item[1], item[0])):
        if least is None or m < least[1] or (loss, m) == least:
            front.append(name)
            least = (loss, m)
    return tuple(front)
