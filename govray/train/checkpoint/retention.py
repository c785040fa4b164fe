"""Which commits of a run stay, and why. Pure: values in, names out.

A run keeps the union of

* ``latest``: its newest commits, the final one among them;
* ``best``: those with the lowest loss, the mean over the steps since the commit before. In a run
  that is judged by a metric: those with its best values;
* ``pinned``: those that somebody asked for by name.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How many commits a run keeps.

    Attributes:
        best: Those with the lowest loss, or the best value of ``metric``.
        latest: The newest, at least one.
        metric: What commits are compared by; the training loss by default.
    """

    best: int = 1
    latest: int = 1
    metric: str | None = None
    goal: Literal["min", "max"] = "min"

    def to_json(self) -> dict[str, Any]:
        stated: dict[str, Any] = {"best": self.best, "latest": self.latest}
        if self.metric is not None:
            stated |= {"metric": self.metric, "goal": self.goal}
        return stated


DEFAULT = Rules()


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One commit as the rules see it.

    Attributes:
        step: The first step that it does not hold.
        loss: Mean loss of the steps since the commit before, if it was a number.
        value: Of the metric that the run is judged by, if it was measured at this step.
    """

    name: str
    step: int
    loss: float | None = None
    value: float | None = None
    size: int = 0
    digest: str = ""


def kept(
    commits: Collection[Commit], rules: Rules, pins: Collection[str] = ()
) -> dict[str, tuple[str, ...]]:
    """The commits that stay: name → reasons, of ``latest``, ``best`` and ``pinned``.
    Of equal ones the newer is the better."""
    newest = sorted(commits, key=lambda commit: -commit.step)
    sign = 1.0 if rules.goal == "min" else -1.0
    rated = [
        (sign * each, commit)
        for commit in newest
        if (each := commit.loss if rules.metric is None else commit.value) is not None
    ]
    best = [commit for _, commit in sorted(rated, key=lambda each: each[0])]  # stable: newest first
    reasons: dict[str, tuple[str, ...]] = {}
    for reason, chosen in (
        ("latest", newest[: max(1, rules.latest)]),
        ("best", best[: rules.best]),
        ("pinned", [commit for commit in newest if commit.name in pins]),
    ):
        for commit in chosen:
            reasons[commit.name] = (*reasons.get(commit.name, ()), reason)
    return reasons
