"""The short sections of the experiment file."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from govray.engine.collective.step_settings import StepSettings
from govray.errors import suggestion
from govray.governance.formats.bounds import Natural, Positive
from govray.storage.place import place
from govray.storage.storage_url import check_path, check_url
from govray.train.experiment.import_path import check_import_path, check_numbers


class Section(BaseModel):
    """A closed, frozen part of a file that people write."""

    model_config = ConfigDict(frozen=True, extra="forbid")


DiskPath = Annotated[str, AfterValidator(check_path)]
"""A file or folder of a disk, never a URL."""


def _check_place(value: str) -> str:
    place(value)
    return value


PlaceText = Annotated[str, AfterValidator(_check_place)]
"""A file or folder of a disk, or a URL of an object store."""


USUAL_STEPS = 100
"""Steps between commits where a file states no measure."""

_MEASURES = ("every_steps", "every_minutes", "every_validations")


class CheckpointEvery(Section):
    """How often weights and governance state are committed together: by one of three measures."""

    every_steps: Positive | None = Field(
        None, description="steps from one commit to the next; 100 if no measure is given"
    )
    every_minutes: PositiveFloat | None = Field(
        None,
        description="minutes from one commit to the next, by the clock of rank 0; in a run with "
        "validation the commit waits for the next one",
    )
    every_validations: Positive | None = Field(
        None, description="validations from one commit to the next"
    )
    save_trial_best: Natural = Field(
        1, description="commits that stay for their loss, the lowest first"
    )
    save_trial_latest: Positive = Field(1, description="newest commits that stay")
    storage: Annotated[str, AfterValidator(check_url)] | None = Field(
        None,
        description="an object store's URL for the commits, such as s3://bucket/prefix; the run's "
        "folder by default",
    )

    @model_validator(mode="after")
    def _by_one_measure(self) -> CheckpointEvery:
        given = [name for name in _MEASURES if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"give one of {', '.join(given)}: a run commits by one measure")
        return self


class Ema(Section):
    """An exponential moving average of the base model's weights, kept beside them.

    Validation measures the weights, never the average.

    Source: Polyak and Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging".
    """

    decay: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.999, description="share of the average that stays at each update"
    )
    every: Positive = Field(1, description="plan steps from one update to the next")


class Sharding(Section):
    """How workers share the model under ``aggregator: fsdp2``; by default all share one copy."""

    replicate: Annotated[int, Field(ge=2)] = Field(
        description="copies of the model (HSDP); the workers of one copy share it, and workers in "
        "a row are of one copy",
    )


def check_copies(workers: int | tuple[int, int], replicate: int) -> None:
    """Accept a number of workers that can hold so many copies of a model that workers share.

    Args:
        workers: A number, or least and most of an elastic run.
        replicate: Copies; 1 goes with any number of workers.
    """
    if replicate == 1:
        return
    least, most = (workers, workers) if isinstance(workers, int) else workers
    if least != most:
        raise ValueError(
            "sharding.replicate: an elastic run may go on with any number of workers between "
            f"{least} and {most}, and copies need a multiple; give one number of workers"
        )
    if least % replicate or least < 2 * replicate:
        raise ValueError(
            f"sharding.replicate: {least} workers can't hold {replicate} copies of a model that "
            f"workers share; give {2 * replicate} workers, or a larger multiple of {replicate}"
        )


def _check_uri(value: str) -> str:
    if "@" in urlsplit(value).netloc:
        raise ValueError("leave the password out, MLflow reads it from the environment")
    return value


class MLflowTracking(Section):
    """Where MLflow keeps runs; passwords and tokens come from MLflow's own variables."""

    tracking_uri: Annotated[str, AfterValidator(_check_uri)] | None = Field(
        None, description="a server, or sqlite:///FILE; MLFLOW_TRACKING_URI by default"
    )
    experiment: str | None = Field(None, description="its name; the experiment's own by default")


class WandbTracking(Section):
    """Where Weights & Biases keeps runs; its key comes from WANDB_API_KEY."""

    project: str = Field(min_length=1, max_length=128, description="where the run is shown")
    entity: str | None = Field(None, description="a user or team; the key's own by default")
    mode: Literal["online", "offline"] = Field(
        "online", description="offline only writes files, which `wandb sync` sends"
    )


class Tracking(Section):
    """Trackers that the driver tells of a run."""

    mlflow: MLflowTracking | None = Field(None, description="an MLflow server or store")
    wandb: WandbTracking | None = Field(None, description="Weights & Biases")

    @model_validator(mode="after")
    def _names_one(self) -> Tracking:
        if self.mlflow is None and self.wandb is None:
            raise ValueError("name mlflow, wandb, or both")
        return self


MOST_STEPS = 100
"""Of one trace: it is written whole, and a viewer loads it whole."""


def _check_steps(value: str) -> str:
    first, colon, end = value.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal()):
        raise ValueError(f"{value!r} is no range of steps, write '10:20' for steps 10 to 19")
    if not 0 < int(end) - int(first) <= MOST_STEPS:
        raise ValueError(f"{value!r} has {int(end) - int(first)} steps, give 1 to {MOST_STEPS}")
    return value


class Profiling(Section):
    """Steps that torch's profiler traces, on rank 0."""

    steps: Annotated[str, AfterValidator(_check_steps)] = Field(
        description="'10:20' traces steps 10 to 19, counted from 0"
    )

    @property
    def range(self) -> range:
        first, _, end = self.steps.partition(":")
        return range(int(first), int(end))


COSINE = "cosine"
"""The default schedule's name: linear warm-up, then a cosine to a tenth at the last step."""


class Schedule(Section):
    """How the learning rate moves: a function of the plan step alone.

    So a corpus that is left out changes no other update.
    """

    name: Annotated[str, AfterValidator(lambda name: check_import_path(name, COSINE))] = Field(
        COSINE,
        description="cosine, or the import path of a torch scheduler, such as "
        "torch.optim.lr_scheduler.LinearLR; one that follows a metric is refused",
    )
    arguments: Annotated[dict[str, Any], AfterValidator(check_numbers)] = Field(
        default_factory=dict, description="what the scheduler's class takes besides the optimizer"
    )
    steps: Positive | None = Field(None, description="how long it lasts, before the one in then")
    then: Schedule | None = Field(None, description="the schedule that follows after steps")

    @model_validator(mode="after")
    def _follow_each_other(self) -> Schedule:
        if self.name == COSINE and (self.arguments or self.steps or self.then):
            raise ValueError(
                "cosine stands alone: its warm-up is optimizer.warmup_steps, its length max_steps"
            )
        if self.then and self.then.name == COSINE:
            raise ValueError(
                "then: cosine stands alone; write torch.optim.lr_scheduler.CosineAnnealingLR"
            )
        if (self.steps is None) != (self.then is None):
            raise ValueError("give steps and then together, or neither")
        return self

    @property
    def parts(self) -> tuple[Schedule, ...]:
        """This schedule and those that follow it, in order."""
        return (self, *(self.then.parts if self.then else ()))


ADAMW = "adamw"
"""The default optimizer's name: `torch.optim.AdamW`, with fields of its own."""

FLOOR = 0.1
"""Share of the learning rate that the default schedule's cosine ends at."""

_ADAMW_ONLY = ("weight_decay", "betas")


class Optimizer(Section):
    """What moves the weights.

    AdamW cancels a factor common to all gradients, so under it a policy's weights are relative.
    """

    name: Annotated[str, AfterValidator(lambda name: check_import_path(name, ADAMW))] = Field(
        ADAMW,
        description="adamw, or the import path of a torch optimizer, such as torch.optim.SGD",
    )
    lr: PositiveFloat = Field(3.0e-4, description="the learning rate that the schedule starts from")
    weight_decay: NonNegativeFloat = Field(0.1, description="adamw's; others take it in arguments")
    betas: tuple[float, float] = Field((0.9, 0.95), description="adamw's, as weight_decay")
    arguments: Annotated[dict[str, Any], AfterValidator(check_numbers)] = Field(
        default_factory=dict,
        description="what the optimizer's class takes besides the learning rate",
    )
    clip_norm: PositiveFloat | None = Field(
        StepSettings.clip_norm, description="largest gradient norm of a domain; null for no limit"
    )
    warmup_steps: Natural = Field(0, description="linear warm-up before the default cosine")

    @model_validator(mode="after")
    def _each_where_it_belongs(self) -> Optimizer:
        if self.name == ADAMW and self.arguments:
            raise ValueError(
                "arguments: adamw has fields of its own; write name: torch.optim.AdamW to give "
                "it arguments"
            )
        if "lr" in self.arguments:
            raise ValueError("arguments.lr: give it as lr, for the schedule moves it")
        given = [name for name in _ADAMW_ONLY if name in self.model_fields_set]
        if self.name != ADAMW and given:
            raise ValueError(f"{given[0]}: adamw's field, write it into arguments")
        return self

    @model_serializer(mode="wrap")
    def _without_others_fields(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        for name in ("arguments",) if self.name == ADAMW else _ADAMW_ONLY:
            written.pop(name, None)
        return written


Goal = Literal["min", "max"]

MEASURED: dict[str, Goal] = {"loss": "min", "perplexity": "min", "accuracy": "max"}
"""What validation data are measured by, and which way is better."""

GROUP = "validation"
"""What stands before the slash in the names of these metrics."""


class EarlyStopping(Section):
    """When a run ends before ``max_steps``."""

    patience: Positive = Field(
        description="validations in a row that are no better than the best before"
    )
    min_delta: NonNegativeFloat = Field(0.0, description="what a better one is better by, at least")


class Validation(Section):
    """What a run is judged by: "best" commits and early stopping go by it."""

    corpora: PlaceText | None = Field(
        None,
        description="folder of corpora, each with its signed credential, that no step trains on; "
        "without it the training loop reports the metric itself",
    )
    every_steps: Positive = Field(
        description="steps from one validation to the next; the last step is always validated"
    )
    rows: Positive = Field(
        1024, description="rows measured each time, at most; the same ones each time"
    )
    metric: str = Field(
        "loss",
        pattern=r"^[\w.-]+(/[\w.-]+)*$",
        max_length=128,
        description="loss, perplexity or accuracy of the corpora, or what the training loop "
        "reports under this name",
    )
    goal: Goal | None = Field(
        None, description="which way is better; known of loss, perplexity and accuracy"
    )
    early_stopping: EarlyStopping | None = None

    @property
    def metric_name(self) -> str:
        if self.corpora is None or "/" in self.metric:
            return self.metric
        return f"{GROUP}/{self.metric}"

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics of the validation data, as they are reported."""
        return tuple(f"{GROUP}/{name}" for name in MEASURED) if self.corpora else ()

    @property
    def better(self) -> Goal:
        return self.goal or MEASURED[self.metric.rpartition("/")[2]]

    @model_validator(mode="after")
    def _has_a_goal(self) -> Validation:
        name = self.metric.rpartition("/")[2]
        if self.goal is None and name not in MEASURED:
            raise ValueError(
                f"goal: say min or max, for {name!r} is not one of {', '.join(MEASURED)}"
                f"{suggestion(name, list(MEASURED))}"
            )
        return self


LONGEST_PATTERN = 200
MOST_POLICIES = 20


def _check_pattern(value: str) -> str:
    if not value.replace("*", "").strip():
        raise ValueError("it fits every line; write some of the text that is meant")
    if not value.isprintable():
        raise ValueError("a pattern is one line of text")
    return value


LogAction = Literal["stop", "flag", "no_retry", "exclude_node"]


class LogPolicy(Section):
    """What a worker's line means for the run.

    A pattern is plain text, in which ``*`` stands for any text. That is less than a regular
    expression on purpose: a line takes time in proportion to its length, whatever both are.
    """

    pattern: Annotated[str, Field(max_length=LONGEST_PATTERN), AfterValidator(_check_pattern)] = (
        Field(description="text that a line has; * stands for any text")
    )
    action: LogAction = Field(
        description="flag: an event; stop: an event, and the run stops after a commit; no_retry: "
        "an event, and no attempt follows a failure of this one; exclude_node: an event, and no "
        "later attempt starts on the worker's node"
    )

    def fits(self, line: str) -> bool:
        """Whether the line has the parts of the pattern, one behind the other."""
        at = 0
        for part in self.pattern.split("*"):
            found = line.find(part, at)
            if found < 0:
                return False
            at = found + len(part)
        return True


LogPolicies = Annotated[tuple[LogPolicy, ...], Field(max_length=MOST_POLICIES)]
