"""The ``memorization`` section of a depth policy: what is measured, and what follows.

A policy without it has no monitor. It is signed with the rest of the policy, and as closed. Its
tolerance is given, or ``govray policy calibrate`` writes it into the source, so what is signed has
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from govray.errors import Malformed
from govray.governance.formats import canonical_json
from govray.governance.formats.bounds import Label, Positive
from govray.governance.formats.canonical_json import JSON
from govray.governance.formats.document import Document
from govray.governance.policy import globs
from govray.governance.policy.globs import Glob

MAX_NUMBER = 1e15
"""Canonical JSON has no numbers from 2^53 to 1e21; nothing measured comes near."""

Number = Annotated[
    float,
    Field(ge=-MAX_NUMBER, le=MAX_NUMBER),
    AfterValidator(lambda number: number + 0.0),  # canonical JSON has no minus zero
]

Magnitude = Annotated[
    float, Field(ge=0, le=MAX_NUMBER), AfterValidator(lambda number: number + 0.0)
]
"""A `Number` of at least 0. A second bound on `Number` would be no keyword of JSON Schema."""

PositiveNumber = Annotated[float, Field(gt=0, le=MAX_NUMBER)]
"""A `Number` above 0."""

Odds = Annotated[float, Field(ge=1, le=1e6)]
"""How many times a held-back record's odds to score above a threshold."""

Action = Literal["flag", "gate", "rollback"]
ACTIONS: tuple[Action, ...] = ("flag", "gate", "rollback")
"""From the mildest to the strictest."""

Statistic = Literal["composite", "min_k", "surprise", "entropy"]
"""By which records are ranked."""

CALIBRATED = "calibrated"
"""What a source says for a tolerance that is still to be chosen."""


class RuleAction(Document):
    """What follows when a class of a rule is flagged.

    Attributes:
        action: ``flag`` records it. ``gate`` puts the corpus under its fallback profile from the
            next step on. ``rollback`` returns to a checkpoint before it was flagged, and leaves
            the corpus out from there on.
        fallback: The profile that a gated corpus follows; there exactly for ``gate``. One that
            permits nothing leaves the corpus out. Any other is narrower than the class's own route
            (``corpus_routes.py``).
    """

    action: Action
    fallback: Label | None = None

    @model_validator(mode="after")
    def _fallback_of_a_gate(self) -> Self:
        if (self.action == "gate") != (self.fallback is not None):
            raise ValueError("fallback belongs to gate, and gate needs one")
        return self


class Monitoring(Document):
    """The ``memorization`` section of a depth policy; a policy without it has no monitor.

    Attributes:
        every: Steps between two probes.
        probe_rows: Rows of each side, per corpus; fewer where there are fewer.
        turns: A corpus is measured in one probe of so many, which one follows from its name.
        rules: Whose classes are measured: of all the rules that match a class, one is named here.
            Absent, every class is. What is not measured is not tested either: the procedure below
            runs over these alone.
        odds: Glob over layer names → tolerance: the odds ratio that calls for nothing. Where
            several match, the smallest holds; a layer that none matches decides nothing.
        fdr: The false discovery rate of each domain over the whole run: the level of e-BH.
        rollbacks: How many rollbacks each domain has in a run.
        actions: Rule of the policy → what follows. A class gets the strictest action of all the
            rules that match it, and ``flag`` where none is named.
    """

    every: Positive
    probe_rows: Annotated[int, Field(ge=2, le=1 << 16)]
    turns: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    rules: Annotated[tuple[Label, ...], Field(min_length=1, max_length=256)] | None = None
    statistic: Statistic = "composite"
    odds: Annotated[dict[Glob, Odds], Field(min_length=1, max_length=256)]
    fdr: Annotated[float, Field(gt=0, lt=1)] = 0.05
    rollbacks: Annotated[int, Field(ge=0, le=100)] = 0
    actions: Annotated[dict[str, RuleAction], Field(max_length=256)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _rollbacks_are_budgeted(self) -> Self:
        wanted = any(each.action == "rollback" for each in self.actions.values())
        if wanted != (self.rollbacks > 0):
            raise ValueError(
                "rollbacks is the budget of the action rollback: give both, or neither"
            )
        return self

    @model_validator(mode="after")
    def _acts_on_what_it_measures(self) -> Self:
        if self.rules is None:
            return self
        if len(set(self.rules)) < len(self.rules):
            raise ValueError("rules names one rule twice")
        if unmeasured := sorted(self.actions.keys() - set(self.rules)):
            raise ValueError(
                f"actions has rule {unmeasured[0]!r}, which rules does not have: its classes may "
                "not be measured"
            )
        return self

    def watches(self, rules: Iterable[str]) -> bool:
        """Whether a class that these rules match is measured."""
        return self.rules is None or not set(self.rules).isdisjoint(rules)

    def due(self, step: int) -> bool:
        """Whether a probe follows ``step``."""
        return (step + 1) % self.every == 0

    def in_turn(self, corpus: str, step: int) -> bool:
        """Whether the probe after ``step`` measures ``corpus``; a function of these alone."""
        return self.due(step) and (step + 1) // self.every % self.turns == self.turn(corpus)

    def turn(self, corpus: str) -> int:
        """Which of ``turns`` probes in a row, counted from 0, measures ``corpus``."""
        name = canonical_json.sha256(corpus.encode()).removeprefix("sha256:")
        return int(name, 16) % self.turns

    def tolerance(self, layer: str) -> float | None:
        """The odds ratio that a layer may have; None if the layer decides nothing."""
        found = [odds for glob, odds in self.odds.items() if globs.matches(glob, layer)]
        return min(found, default=None)

    def action(self, rules: Iterable[str]) -> Action:
        """The strictest action of these rules."""
        named = [self.actions[rule].action for rule in rules if rule in self.actions]
        return max(named, key=ACTIONS.index, default="flag")

    def fallbacks(self, rules: Iterable[str]) -> dict[str, str]:
        """Rule → fallback profile, of these rules where they gate; none if another is stricter."""
        rules = tuple(rules)
        if self.action(rules) != "gate":
            return {}
        named = {rule: self.actions[rule].fallback for rule in rules if rule in self.actions}
        return {rule: fallback for rule, fallback in named.items() if fallback is not None}


def expanded(value: JSON, where: str) -> JSON:
    """The section of a source with its short forms written out.

    A number for ``odds`` holds for all layers, and the name of an action stands for the action.

    Raises:
        Malformed: Its odds are not calibrated; ``where`` is its line.
    """
    if isinstance(value, dict):
        odds = value.get("odds")
        if odds == CALIBRATED:
            raise Malformed(
                "the odds are not calibrated",
                where=where,
                do="Run `govray policy calibrate`, which puts them in",
            )
        if isinstance(odds, int | float) and not isinstance(odds, bool):
            value = value | {"odds": {"*": odds}}
        if isinstance(actions := value.get("actions"), dict):
            value = value | {
                "actions": {
                    rule: {"action": each} if isinstance(each, str) else each
                    for rule, each in actions.items()
                }
            }
    return value


def relaxed(before: Monitoring | None, after: Monitoring | None) -> tuple[str, ...]:
    """In what a section asks for less than the one before it, a sentence each.
    Actions are apart, and so is which classes are measured: the rules of both policies tell."""
    if before is None:
        return ()
    if after is None:
        return ("nothing is monitored any more",)
    found = [
        f"{name} goes from {was} to {now}"
        for name, was, now, less in (
            ("every", before.every, after.every, after.every > before.every),
            ("turns", before.turns, after.turns, after.turns > before.turns),
            (
                "probe_rows",
                before.probe_rows,
                after.probe_rows,
                after.probe_rows < before.probe_rows,
            ),
            ("fdr", before.fdr, after.fdr, after.fdr < before.fdr),
            ("rollbacks", before.rollbacks, after.rollbacks, after.rollbacks < before.rollbacks),
            ("statistic", before.statistic, after.statistic, after.statistic != before.statistic),
        )
        if less
    ]
    for glob, odds in before.odds.items():
        now = after.odds.get(glob)
        if now is None:
            found.append(f"layers {glob} decide nothing any more")
        elif now > odds:
            found.append(f"the odds that layers {glob} may have grow from {odds:g} to {now:g}")
    return tuple(found)
