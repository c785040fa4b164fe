"""Early stopping: rules that read one trial's reports and say why it should stop.

A rule is one small frozen class with ``reason(reports) -> str | None``. Rules only see
their own trial, in the order of its reports, so what one trial does stops no other.
``first_reason`` asks them in the file's order; the first reason is the one recorded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from pydantic import Field, model_validator

from govray.errors import UsageError
from govray.governance.formats.bounds import Positive
from govray.train.experiment.sections import Section
from govray.tune.objective import TrialReport


class StopRule(Protocol):
    """One reason to stop a trial early."""

    def reason(self, reports: Sequence[TrialReport], /) -> str | None:
        """Why the trial should stop after the last of ``reports``, or None."""


class NoImprovement(Section):
    """Stop when the objective has not improved for many reports."""

    no_improvement: Positive = Field(
        description="reports in a row that are no better than the best before"
    )

    def reason(self, reports: Sequence[TrialReport]) -> str | None:
        """See `StopRule`. A NaN report is no improvement."""
        best, since = math.inf, 0
        for report in reports:
            if report.objective < best:
                best, since = report.objective, 0
            else:
                since += 1
        if since < self.no_improvement:
            return None
        return f"no improvement in {since} reports (best objective {best:.4g})"


OF_A_REPORT = ("memorization", "objective")
"""Figures of a report beside the search's own metric."""


class Bound(Section):
    """A figure and its limit."""

    metric: str = Field(
        "loss",
        description="memorization, objective, or the search's metric, which loss stands for too",
    )
    below: float | None = Field(None, description="stop at this figure or less")
    above: float | None = Field(None, description="stop at this figure or more")

    @model_validator(mode="after")
    def _one_of_two(self) -> Bound:
        if (self.below is None) == (self.above is None):
            raise ValueError("give one of below, above")
        return self


class Threshold(Section):
    """Stop when a figure is good enough, or too bad."""

    threshold: Bound

    def reason(self, reports: Sequence[TrialReport]) -> str | None:
        bound = self.threshold
        named = bound.metric if bound.metric in OF_A_REPORT else "value"
        value = getattr(reports[-1], named) if reports else None
        if value is None:
            return None
        if bound.below is not None and value <= bound.below:
            return f"{bound.metric} {value:.4g} is at or below {bound.below:.4g}"
        if bound.above is not None and not value < bound.above:
            return f"{bound.metric} {value:.4g} is at or above {bound.above:.4g}"
        return None


class Memorization(Section):
    """Stop a trial that memorizes in several reports in a row."""

    memorization: Positive = Field(description="reports in a row with M above tau")

    def reason(self, reports: Sequence[TrialReport]) -> str | None:
        tail = reports[-self.memorization :]
        # Not `v > 0`: NaN counts as memorizing.
        if len(tail) < self.memorization or any(report.v <= 0 for report in tail):
            return None
        return f"memorization above tau in {len(tail)} reports in a row (v {tail[-1].v:.4g})"


class Divergence(Section):
    """Stop when the loss is NaN, or far above its lowest value. One below 0 has no such factor."""

    divergence: float = Field(gt=1, description="times the lowest loss so far")

    def reason(self, reports: Sequence[TrialReport]) -> str | None:
        if not reports:
            return None
        last = reports[-1].value
        if not math.isfinite(last):
            return f"the loss is {last}"
        lowest = min(report.value for report in reports if math.isfinite(report.value))
        if last <= self.divergence * lowest or lowest < 0:
            return None
        return f"loss {last:.4g} is more than {self.divergence:g} times its lowest, {lowest:.4g}"


class Custom(Section):
    """A rule of your own."""

    rule: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="module:function, called with the trial's reports; returns a reason or None",
    )

    def reason(self, reports: Sequence[TrialReport]) -> str | None:
        module, name = self.rule.split(":")
        try:
            function = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise UsageError(str(error), where=f"search.stop rule {self.rule}") from None
        reason: Any = function(reports)
        return None if reason is None else str(reason)


def first_reason(rules: Sequence[StopRule], reports: Sequence[TrialReport]) -> str | None:
    """Why the trial stops now, by the first rule in the file's order; or None."""
    for rule in rules:
        reason = rule.reason(reports)
        if reason is not None:
            return reason
    return None
