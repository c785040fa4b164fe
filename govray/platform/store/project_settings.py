"""A project's config policy: what may be submitted to it, and what an experiment has by default.

An administrator writes it, and `resolve` applies it. ``defaults`` lie below what a file says: they
count where the file says nothing. ``fixed`` values are added there too. A file that says something
else than what is fixed is refused, not changed: who submits has to know what will run. Everything
else is a limit, and what is beyond one is refused with all that is wrong.

A policy binds files and not code: a job runs the working directory that it was submitted with. So
where depth policies are limited, tasks are refused that run any program (`ANY_PROGRAM`).

Pure: no store, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from govray.errors import Refused, UsageError
from govray.governance.formats.document import Digest
from govray.governance.formats.field_errors import field_errors
from govray.governance.submission.yaml_overrides import Override, below, leaves, written

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Priority = Annotated[int, Field(ge=-1000, le=1000)]
Slots = Annotated[int, Field(ge=1, le=100_000)]
PolicyName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\s\x00]+$")]

TaskKind = Literal["notebook", "shell", "tensorboard", "command", "inference"]

ANY_PROGRAM: tuple[TaskKind, ...] = ("notebook", "shell", "command")
"""Kinds of tasks that run what their user likes, so they can train without a depth policy."""

LONGEST_DEFAULTS = 1 << 14
"""Characters of ``defaults`` or ``fixed``, as YAML."""
MOST_NAMES = 64


class Retention(BaseModel):
    """Which runs are deleted by themselves: those that ended long ago, but for some of each
    experiment."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    days: int = Field(ge=1, le=36_500, description="since a run ended; earlier ones are marked")
    best: int = Field(0, ge=0, le=100_000, description="of an experiment's runs so many stay")
    latest: int = Field(0, ge=0, le=100_000, description="of an experiment's runs so many stay")


class ProjectSettings(BaseModel):
    """What an administrator sets for a project. An empty one allows everything."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    pools: tuple[Name, ...] | None = Field(
        None, max_length=MOST_NAMES, strict=False, description="pools that may be used; all of them"
    )
    default_pool: Name = Field("default", description="pool of an experiment that names none")
    default_priority: Priority = Field(0, description="priority of one that says none")
    max_priority: Priority | None = Field(
        None, description="highest priority that may be asked; the default one"
    )
    share: float = Field(1.0, gt=0, le=1000, description="weight beside other projects, fair share")
    max_slots: Slots | None = Field(None, description="slots held at the same time, all together")
    max_slots_per_experiment: Slots | None = Field(None, description="slots of one experiment")
    depth_policies: tuple[PolicyName, ...] | None = Field(
        None,
        max_length=MOST_NAMES,
        strict=False,
        description="depth policies that may be used, by digest or by name; all of them",
    )
    manifests: tuple[Digest, ...] | None = Field(
        None,
        min_length=1,
        max_length=MOST_NAMES,
        strict=False,
        description="prepared data that its runs may be attested over, by the digest of the "
        "manifest; all",
    )
    tasks: tuple[TaskKind, ...] | None = Field(
        None,
        max_length=16,
        strict=False,
        description="kinds of tasks that may be submitted; all of them, but with depth_policies "
        "tensorboard and inference alone",
    )
    delete_after_days: int = Field(
        7, ge=0, le=3650, description="days from a run's deletion to its removal from storage"
    )
    retention: Retention | None = Field(
        None, description="which runs are deleted by themselves; none of them"
    )
    monthly_accelerator_hours: float | None = Field(
        None, gt=0, description="budget of a calendar month, an event when it is reached; no budget"
    )
    memorization_tau: float | None = Field(
        None, description="the laxest limit of memorization that a search may declare"
    )
    defaults: dict[str, Any] = Field(
        default_factory=dict, description="values of an experiment that lie below the file's own"
    )
    fixed: dict[str, Any] = Field(
        default_factory=dict, description="values that no file may have otherwise"
    )

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> ProjectSettings:
        if self.pools is not None and self.default_pool not in self.pools:
            raise ValueError(f"default_pool: {self.default_pool} is not among pools")
        if self.max_priority is not None and self.default_priority > self.max_priority:
            raise ValueError("default_priority: it is above max_priority")
        most, each = self.max_slots, self.max_slots_per_experiment
        if most is not None and each is not None and each > most:
            raise ValueError("max_slots_per_experiment: it is above max_slots")
        for name in ("defaults", "fixed"):
            if len(written(getattr(self, name))) > LONGEST_DEFAULTS:
                raise ValueError(f"{name}: longer than {LONGEST_DEFAULTS} characters")
        return self

    def stored(self) -> dict[str, Any]:
        """What the store keeps: what differs from an empty policy."""
        return self.model_dump(mode="json", exclude_defaults=True)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be submitted, as far as a config policy looks at it. ``slots``: workers that it
    holds while it runs. ``policy``: digest of the signed depth policy, if it is known."""

    config: Mapping[str, Any]
    slots: int
    pool: str | None = None
    priority: int | None = None
    policy: str | None = None
    policy_name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """What is submitted: with the project's defaults, and within its limits. ``changed`` says
    whether ``config`` differs from what was wanted."""

    config: Mapping[str, Any]
    slots: int
    pool: str
    priority: int
    policy: str | None
    changed: bool


def parse_settings(value: Any, *, where: str) -> ProjectSettings:
    try:
        return ProjectSettings.model_validate(value)
    except ValidationError as error:
        wrong = "; ".join(map(str, field_errors(error)))
        known = ", ".join(ProjectSettings.model_fields)
        raise UsageError(wrong, where=where, do=f"The fields are {known}") from None


def with_defaults(settings: ProjectSettings, config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` with what the project adds to it: fixed values first, then defaults."""
    return below(below(config, settings.fixed), settings.defaults)


def resolve(settings: ProjectSettings, wanted: Wanted, *, project: str) -> Resolved:
    """What becomes of ``wanted`` in this project. Slots are those of the whole file: whoever counts
    them does so behind `with_defaults`."""
    config = with_defaults(settings, wanted.config)
    pool, priority = _chosen(settings, wanted.pool, wanted.priority)
    wrong = [
        *_outside(settings, wanted.slots, pool, priority),
        *_otherwise(settings, config),
        *_lax(settings, config),
        *_other_policy(settings, wanted),
    ]
    _refuse(wrong, project)
    return Resolved(
        config=config,
        slots=wanted.slots,
        pool=pool,
        priority=priority,
        policy=wanted.policy,
        changed=config != dict(wanted.config),
    )


def resolve_task(
    settings: ProjectSettings,
    *,
    kind: TaskKind,
    slots: int,
    pool: str | None,
    priority: int | None,
    project: str,
) -> tuple[str, int]:
    """Pool and priority of a task, which has no experiment file, within this project's limits."""
    pool, priority = _chosen(settings, pool, priority)
    wrong = [*_outside(settings, slots, pool, priority), *_other_task(settings, kind)]
    _refuse(wrong, project)
    return pool, priority


def _chosen(settings: ProjectSettings, pool: str | None, priority: int | None) -> tuple[str, int]:
    return (
        settings.default_pool if pool is None else pool,
        settings.default_priority if priority is None else priority,
    )


def _refuse(wrong: list[str], project: str) -> None:
    if wrong:
        raise Refused(
            "; ".join(wrong[:20]),
            where=f"project {project}",
            do="Ask an admin of the project to change its settings, or change what you submit",
        )


def _outside(settings: ProjectSettings, slots: int, pool: str, priority: int) -> list[str]:
    wrong = []
    if settings.pools is not None and pool not in settings.pools:
        wrong.append(f"the pool {pool} is not among {', '.join(settings.pools)}")
    # Without a cap one project could stop all others' runs.
    highest = settings.default_priority if settings.max_priority is None else settings.max_priority
    if priority > highest:
        wrong.append(f"priority {priority} is above {highest}")
    for most in {settings.max_slots_per_experiment, settings.max_slots} - {None}:
        if most is not None and slots > most:
            wrong.append(f"{slots} slots are more than {most}")
    return sorted(wrong)


_ABSENT = object()


def _otherwise(settings: ProjectSettings, config: Mapping[str, Any]) -> list[str]:
    """Values that the file has otherwise than they are fixed. They are not repeated.

    A search's trials take what its space names in the place of what the file has. Other fields of
    the search change values, too (`_by_the_way`).
    """
    wrong = []
    varied = _varied(config)
    for each in leaves(settings.fixed):
        found: Any = config
        for step in each.path:
            found = found.get(step, _ABSENT) if isinstance(found, Mapping) else _ABSENT
        if not _same(found, each.value):
            wrong.append(f"{each.name} is fixed, and the file has another value")
        dotted = ".".join(each.path)
        if any(_overlap(name, dotted) for name in varied):
            wrong.append(f"{each.name} is fixed, and the search varies it")
        wrong += [f"{each.name} is fixed, and {why}" for why in _by_the_way(config, each, varied)]
    return wrong


SEARCHED = (
    *("hyperparameters", "optimizer", "schedule", "seed"),
    *("data.rows_per_step", "data.mixture", "data.epochs"),
)
"""What a searcher may vary: `govray.tune.search_config.VARIABLE`."""

_OF_AN_OPTIMIZER = ("optimizer.arguments", "optimizer.weight_decay", "optimizer.betas")
"""What a trial drops that draws another optimizer, for they are of the file's own."""


def _by_the_way(config: Mapping[str, Any], fixed: Override, varied: set[str]) -> list[str]:
    """How a search changes a fixed value without naming it."""
    search = config.get("search")
    if not isinstance(search, Mapping):
        return []
    dotted, wrong = ".".join(fixed.path), []
    longest, searcher = search.get("max_time"), search.get("searcher")
    if dotted == "max_steps" and longest is not None and not _same(longest, fixed.value):
        wrong.append("search.max_time is another length of its trials")
    if "optimizer.name" in varied and any(_overlap(dotted, each) for each in _OF_AN_OPTIMIZER):
        wrong.append("another optimizer.name of the search drops it")
    own = isinstance(searcher, str) and not searcher.isidentifier()
    if own and any(_overlap(dotted, each) for each in SEARCHED):
        wrong.append("a searcher of your own may vary it")
    return wrong


def _varied(config: Mapping[str, Any]) -> set[str]:
    """The names that a search's trials vary, those of its options' own spaces too."""
    search = config.get("search")
    found: set[str] = set()
    pending = [search.get("space")] if isinstance(search, Mapping) else []
    while pending:
        space = pending.pop()
        for name, given in space.items() if isinstance(space, Mapping) else ():
            found.add(str(name))
            options = given.get("one_of") if isinstance(given, Mapping) else None
            for option in options if isinstance(options, list) else ():
                pending.append(option.get("space") if isinstance(option, Mapping) else None)
    return found


def _overlap(one: str, other: str) -> bool:
    """Whether two dotted names are one value, or one is a part of the other's."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _same(found: Any, fixed: Any) -> bool:
    """Whether both are one value; true is not 1 here."""
    if isinstance(found, bool) != isinstance(fixed, bool):
        return False
    return bool(found == fixed)


def _lax(settings: ProjectSettings, config: Mapping[str, Any]) -> list[str]:
    """What is wrong with a search's limit of memorization. A plain run has no search."""
    if settings.memorization_tau is None or "search" not in config:
        return []
    search = config["search"]
    limit = search.get("memorization") if isinstance(search, Mapping) else None
    tau = limit.get("tau") if isinstance(limit, Mapping) else None
    if isinstance(tau, bool) or not isinstance(tau, int | float) or math.isnan(tau):
        return [f"search.memorization.tau is missing; it is {settings.memorization_tau} at most"]
    if tau > settings.memorization_tau:
        return [f"search.memorization.tau {tau} is above {settings.memorization_tau}"]
    return []


def _other_policy(settings: ProjectSettings, wanted: Wanted) -> list[str]:
    if settings.depth_policies is None:
        return []
    if wanted.policy is None:
        return ["its depth policy is not known, and the project allows some alone"]
    if {wanted.policy, wanted.policy_name} & set(settings.depth_policies):
        return []
    return [f"the depth policy {wanted.policy} is not allowed"]


def _other_task(settings: ProjectSettings, kind: TaskKind) -> list[str]:
    if settings.tasks is not None:
        if kind in settings.tasks:
            return []
        return [f"tasks of the kind {kind} are not among {', '.join(settings.tasks) or 'nothing'}"]
    if settings.depth_policies is not None and kind in ANY_PROGRAM:
        return [
            f"a {kind} can train under any depth policy or none, and the project allows some alone "
            "(its setting tasks may allow it all the same)"
        ]
    return []
