"""What an experiment file asks of a cluster, read off its text: nothing is run, opened or loaded.

A service calls this on what anybody with a token sends. So no module, recipe or path that the file
names is looked at. What cannot be said from the text alone is in ``unknown``, in words.

This module imports neither ray nor torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from govray.errors import UsageError
from govray.governance.formats.keys import is_outside
from govray.governance.formats.strict_yaml import Source, read_yaml
from govray.governance.submission.yaml_overrides import read_mapping
from govray.train.experiment.environment import JobEnvironment
from govray.train.inputs.experiment_config import DATA, Experiment, parse_experiment
from govray.train.inputs.own_code import own_modules
from govray.tune.search_config import SearchFile, parse_search

_TIME = "worker hours: how long a step takes is measured when it runs"
_STREAMS = (
    "rows and tokens, exactly: a profile reads its rows for each of its route streams, which "
    "follow from the policy and the corpora's credentials"
)
_LENGTH = "steps: the run ends with its data, which are admitted when it begins"
_TRIALS = "steps, exactly: a search ends trials early, and the figures are of none that does"


@dataclass(frozen=True, kw_only=True)
class ExperimentCost:
    """What a run or a search takes at most, as far as the file says.

    Attributes:
        kind: ``tune`` where the file has a search section.
        workers: Of one run; of an elastic one the most.
        slots: Workers that it holds at once, of all trials together.
        least: Of an elastic run the slots that it can go on with; None if it needs them all, as
            every search does.
        gpus: At once.
        trials: 1 without a search.
        steps: Of all trials together, if none ends early; None where they end with the data.
        rows_per_step: Of one trial, if each profile has one route stream.
        tokens: Of all trials together, likewise; None for rows that are no text, and where
            steps are.
        policy: Where the signed depth policy lies, as the file has it.
        labels: Its tags, if its submitter gives none.
        own_code: Whether it names no code but govray's and torch's optimizers.
        pretrained: Whether it names weights to start from.
        unknown: What the file does not say, each in words.
    """

    kind: Literal["train", "tune"]
    name: str
    workers: int
    slots: int
    least: int | None
    gpus: float
    trials: int
    steps: int | None
    rows_per_step: float
    tokens: int | None
    policy: str
    labels: tuple[str, ...]
    own_code: bool
    pretrained: bool
    unknown: tuple[str, ...]


def experiment_cost(text: str, *, name: str = "experiment") -> ExperimentCost:
    """Validate the file ``text`` against the whole schema, and say what it asks for. Raises
    `UsageError`: it is no experiment. Names line and field."""
    return cost_of(*parsed(text, name=name))


def parsed(text: str, *, name: str) -> tuple[Experiment, SearchFile | None, Source]:
    """The experiment of a file's text, its search if it has one, and where its fields stand."""
    source, value = read_yaml(text, name=name), read_mapping(text, name=name)
    if "search" not in value:
        return parse_experiment(value, where=name, source=source), None, source
    found = parse_search(value, where=name, source=source)
    return found.experiment, found, source


def cost_of(experiment: Experiment, found: SearchFile | None, source: Source) -> ExperimentCost:
    """As `experiment_cost`, of a file that is `parsed`."""
    if is_outside(experiment.attestation_key):
        raise UsageError(
            "attestation_key: a submitted experiment names no program or module that signs, which "
            "the cluster's driver would run",
            where=source.where("attestation_key"),
            do="Leave it out: the driver signs with the key of its own machine",
        )
    resources = experiment.resources
    workers = resources.most
    at_once, trials = 1, 1
    longest = None if experiment.max_steps == DATA else experiment.max_steps
    unknown = [_TIME, _STREAMS, *([_LENGTH] if longest is None else [])]
    if found is not None:
        trials, longest = found.search.max_trials, found.max_time
        if found.most_at_once is None:
            raise UsageError(
                "search.max_concurrent_trials: a queue has to know how many trials run at once",
                where=source.where("search"),
                do="Write it, or send the override +search.max_concurrent_trials=4",
            )
        at_once = min(trials, found.most_at_once)
        unknown.append(_TRIALS)
    rows = sum(quota.rows / quota.every for quota in experiment.data.rows_per_step.values())
    steps = None if longest is None else trials * longest
    text = experiment.data.rows != "images"
    return ExperimentCost(
        kind="train" if found is None else "tune",
        name=experiment.name,
        workers=workers,
        slots=at_once * workers,
        least=resources.least if found is None and resources.least < workers else None,
        gpus=at_once * workers * resources.gpus_per_worker,
        trials=trials,
        steps=steps,
        rows_per_step=rows,
        tokens=round(steps * rows * experiment.context) if text and steps else None,
        policy=str(experiment.governance.policy),
        labels=experiment.labels,
        own_code=found is None and _own_code(experiment),
        pretrained=experiment.pretrained is not None,
        unknown=tuple(unknown),
    )


def _own_code(experiment: Experiment) -> bool:
    """Nor does it set a variable, by which Python finds code."""
    given = experiment.environment or JobEnvironment()
    return given == JobEnvironment(image=given.image) and not any(own_modules(experiment))
