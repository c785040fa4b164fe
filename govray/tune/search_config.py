"""The ``search`` section of an experiment file: what varies, for how long, and what is best.

Invariants:

* Policy, corpora and the admitted data never vary: the names that may vary are a closed list.
* Each name and both ends of its range are tried on the experiment when the file is read. So a
  mistake is found before anything runs.

This module imports neither ray nor torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, Tag, ValidationError, model_validator

from govray.errors import UsageError, suggestion
from govray.governance.formats.bounds import Positive
from govray.governance.formats.strict_yaml import Source
from govray.train.experiment.sections import Section
from govray.train.inputs.experiment_config import (
    DATA,
    DiskPath,
    Experiment,
    Seed,
    line_of,
    parse_experiment,
    problems,
    read_overridden,
)
from govray.tune.objective import Goal
from govray.tune.space import Space, by_key, check_distinct, walk
from govray.tune.stop_rules import (
    OF_A_REPORT,
    Custom,
    Divergence,
    Memorization,
    NoImprovement,
    Threshold,
)

_SECTIONS = ("hyperparameters", "optimizer", "schedule", "data.rows_per_step", "data.mixture")
_OPTIMIZER = "optimizer.name"
VARIABLE = (*_SECTIONS, "data.epochs", "seed")
"""What may vary between the trials of a search: these and what lies below them."""


class MemorizationLimit(Section):
    """One named statistic of the monitor, and how much of it a trial may show."""

    statistic: str = Field(description="name of the monitor's statistic, M")
    unit: str = Field(description="M's unit, and tau's")
    tau: float = Field(description="limit of M; .inf searches by the metric alone")

    @model_validator(mode="after")
    def _a_limit(self) -> MemorizationLimit:
        if math.isnan(self.tau) or self.tau == -math.inf:
            raise ValueError("tau: give a number, or .inf")
        return self


class Search(Section):
    """How an experiment's hyperparameters are searched."""

    searcher: DiskPath = Field(
        "asha",
        description="grid, random, bayesian, hyperband, asha, pbt, or the path of a Python file",
    )
    space: Annotated[
        Space,
        Field(
            min_length=1,
            description="dotted name in the experiment to its range: {log: [low, high]}, "
            "{uniform: [low, high]}, {int: [low, high]}, {choice: [...]}, or "
            "{one_of: [{value: ..., space: ...}]} for options that bring ranges of their own",
        ),
    ]
    metric: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        "loss",
        description="what trials are compared by: a number that they report. loss is the mean "
        "training loss since the last commit",
    )
    goal: Goal = Field(
        "min",
        description="whether a lower or a higher metric is better",
    )
    max_trials: int = Field(ge=1, le=10_000)
    max_concurrent_trials: Positive | None = Field(
        None,
        description="started and not ended; all that fit by default, or 8 where an autoscaler "
        "has yet to bring the room",
    )
    max_time: Positive | None = Field(
        None, description="steps of the longest trial; the experiment's max_steps by default"
    )
    max_rungs: int = Field(5, ge=1, le=64, description="rungs of the longest bracket, at most")
    divisor: int = Field(
        4, ge=2, description="one in so many trials goes on from a rung to the next"
    )
    mode: Literal["aggressive", "standard", "conservative"] = Field(
        "standard", description="brackets: the longest, the longer half, or all"
    )
    form: Literal["stopping", "promotion"] = Field(
        "promotion",
        description="asha: pause at each rung and promote later, or decide at once; a pause costs "
        "a restart",
    )
    memorization: MemorizationLimit | None = Field(
        None, description="without it the search goes by the metric alone"
    )
    stop: tuple[
        Annotated[
            Annotated[NoImprovement, Tag("no_improvement")]
            | Annotated[Threshold, Tag("threshold")]
            | Annotated[Memorization, Tag("memorization")]
            | Annotated[Divergence, Tag("divergence")]
            | Annotated[Custom, Tag("rule")],
            by_key("no_improvement", "threshold", "memorization", "divergence", "rule"),
        ],
        ...,
    ] = Field((), description="rules that stop a trial early; the first that holds is recorded")
    seed: Seed = Field(17, description="of what trials draw")

    @model_validator(mode="after")
    def _no_name_twice(self) -> Search:
        check_distinct(self.space)
        return self

    @model_validator(mode="after")
    def _rules_fit_the_metric(self) -> Search:
        known = (*OF_A_REPORT, self.metric, "loss")
        for rule in self.stop:
            if isinstance(rule, Divergence) and self.goal == "max":
                raise ValueError(
                    "stop: divergence is of a loss, which is minimized; use no_improvement, or a "
                    "threshold with below"
                )
            if isinstance(rule, Threshold) and rule.threshold.metric not in known:
                named = rule.threshold.metric
                raise ValueError(
                    f"stop: trials have no {named!r}{suggestion(named, known)}; name memorization, "
                    "objective, or the search's metric"
                )
        return self

    @property
    def lead(self) -> str:
        """What the leader of the search has, in words."""
        return f"{'lowest' if self.goal == 'min' else 'highest'} {self.metric}"

    @property
    def tau(self) -> float:
        """The limit of M, in its unit; infinite where the search declares none."""
        return self.memorization.tau if self.memorization else math.inf


@dataclass(frozen=True)
class SearchFile:
    experiment: Experiment
    search: Search

    @property
    def most_at_once(self) -> int | None:
        """Trials that may have started and not ended, by the file; None if it says nothing."""
        resources = self.experiment.resources
        room = resources.max_workers and resources.max_workers // resources.most
        stated = [each for each in (self.search.max_concurrent_trials, room) if each is not None]
        return min(stated, default=None)

    @property
    def max_time(self) -> int:
        """Steps of the longest trial."""
        return self.search.max_time or self.experiment.steps

    def trial(self, values: Mapping[str, Any]) -> Experiment:
        """The experiment of one trial: ``values`` by dotted name, in place of the shared ones.
        Raises `UsageError`: a name that must not vary, or a value that does not fit."""
        changed = self.experiment.model_dump(mode="json")
        changed["data"].setdefault("mixture", {})  # left out where it is empty
        _choose_optimizer(changed["optimizer"], values.get(_OPTIMIZER))
        changed["optimizer"].setdefault("arguments", {})
        for name, value in values.items():
            _check_name(name)
            *sections, last = name.split(".")
            section: Any = changed
            for each in sections:
                section = section.get(each) if isinstance(section, dict) else None
                if not isinstance(section, dict):
                    raise UsageError(
                        f"{name}: the experiment has no {each!r}", where="search.space"
                    )
            if isinstance(section.get(last), dict) and isinstance(value, int):
                section[last]["rows"] = value  # a quota's short form; its stride stays
            else:
                section[last] = value
        try:
            return parse_experiment(changed, where=f"trial {dict(values)}")
        except UsageError as error:
            raise UsageError(error.what, where=error.where, do="Mend search.space") from None


def _choose_optimizer(section: dict[str, Any], name: object) -> None:
    """Leave no argument of the file's optimizer to one of another name, which has its own."""
    if name not in (None, section["name"]):
        for each in ("arguments", "weight_decay", "betas"):
            section.pop(each, None)
        section["name"] = name
    section.setdefault("arguments", {})  # left out where it is empty


def _check_name(name: str) -> None:
    if name == "hyperparameters.context":
        raise UsageError(
            "hyperparameters.context must not vary: rows are packed once, for all trials",
            where="search.space",
            do="Run one search for each context",
        )
    below = any(name.startswith(f"{each}.") for each in _SECTIONS)
    if below or name in set(VARIABLE) - set(_SECTIONS):
        return
    if name.startswith(("governance", "data.corpora", "data.exclude")):
        what, do = (
            f"{name} must not vary: policy and corpora are the same for all trials",
            "Drop it",
        )
    else:
        what, do = f"{name} is no name that may vary", f"What may: {', '.join(VARIABLE)}"
    raise UsageError(what, where="search.space", do=do)


def read_search(path: str | Path, overrides: Sequence[str] = ()) -> SearchFile:
    """Read an experiment file with a ``search`` section, with overrides as `read_experiment`."""
    value, source = read_overridden(path, overrides)
    return parse_search(value, where=str(path), source=source)


def parse_search(value: Any, *, where: str, source: Source | None = None) -> SearchFile:
    """Validate a file's value that is already parsed; see `read_search`. An error of a field names
    a line where ``source`` has the text's lines."""
    if not isinstance(value, dict) or "search" not in value:
        raise UsageError("no search section", where=where, do="See jobs/tune.yaml")
    shared = {k: v for k, v in value.items() if k != "search"}
    experiment = parse_experiment(shared, where=where, source=source)
    if experiment.max_steps == DATA:
        raise UsageError(
            "max_steps: data is for one run; trials are compared at equal steps",
            where=where,
            do="Write a number",
        )
    if experiment.commit_steps is None:
        raise UsageError(
            "checkpoint.every_minutes: trials are compared where they commit, which the clock "
            "would decide",
            where=source.where("checkpoint", "every_minutes") if source else where,
            do="Write every_steps or every_validations",
        )
    try:
        found = SearchFile(experiment, Search.model_validate(value["search"]))
    except ValidationError as error:
        raise UsageError(
            problems(error, Search),
            where=line_of(error, source, "search") or f"{where}, search",
            do="`govray schema experiment` lists it",
        ) from None
    if found.max_time > experiment.steps:
        raise UsageError(
            f"search.max_time {found.max_time} is above max_steps {experiment.max_steps}",
            where=where,
            do="max_steps is how long a schedule runs: raise it, or lower max_time",
        )
    if experiment.validation is not None and experiment.validation.early_stopping is not None:
        raise UsageError(
            "early_stopping: a search ends its trials itself",
            where=f"{where}, validation",
            do="Leave it out, and write a rule under search.stop",
        )
    for given, name, dimension in walk(found.search.space):
        for end in dimension.ends:
            found.trial({**given, name: end})
    return found


class ExperimentFile(Experiment):
    """All that an experiment file may hold: what `govray schema experiment` describes."""

    search: Search | None = Field(None, description="for `govray tune` alone")
