"""The experiment file: a closed schema in YAML that names everything a run depends on.

Relative paths count from the working directory, as they do for any command. This module imports
neither ray nor torch, so `govray schema` and `policy lint` work on the base install.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from govray.engine.collective.step_settings import (
    AGGREGATORS,
    SHARDING,
    AggregatorName,
    FrameworkName,
    Precision,
    StepSettings,
)
from govray.errors import UsageError, suggestion
from govray.governance.formats.bounds import Natural, Positive, Share
from govray.governance.formats.document import value_suggestion
from govray.governance.formats.keys import check_reference, is_outside
from govray.governance.formats.row_schema import RowKind, RowSchema
from govray.governance.formats.strict_yaml import Source, read_yaml
from govray.governance.record.canary import (
    FORMAT,
    Canaries,
    CanaryCount,
    CanaryDigits,
    CanaryRepeats,
    check_coin,
    check_format,
)
from govray.governance.record.prepare_manifest import ReserveShare
from govray.governance.submission.submission import MOST_TAGS, WORD
from govray.governance.submission.yaml_overrides import overridden, read_mapping
from govray.storage.storage_url import check_path
from govray.train.checkpoint.retention import Rules
from govray.train.experiment.environment import JobEnvironment
from govray.train.experiment.resources import QUEUED, Resources
from govray.train.experiment.sections import (
    COSINE,
    USUAL_STEPS,
    CheckpointEvery,
    Ema,
    LogPolicies,
    Optimizer,
    Profiling,
    Schedule,
    Section,
    Sharding,
    Tracking,
    Validation,
    check_copies,
)
from govray.train.experiment.sections import DiskPath as DiskPath
from govray.train.experiment.sections import PlaceText as PlaceText

SEEN_ONLY = frozenset(
    {"description", "labels", "log_policies", "notes", "preemption_timeout_s", "profiling"}
    | {"project", "tensorboard", "tracking"}
)
"""Fields that say what people see of a run, and when it ends. They change nothing about what is
trained, so a run that goes on may have others."""

APART: Any = {**dict.fromkeys(SEEN_ONLY, True), "resources": set(QUEUED)}
"""What may differ where a run resumes: what is only looked at, and when it starts."""

LONGEST_DESCRIPTION = 1000
LONGEST_NOTES = 1 << 14
"""Characters."""


def _check_word(value: str) -> str:
    if not re.fullmatch(WORD, value):
        raise ValueError(
            f"{value[:80]!r} is not allowed: give 1 to 64 letters, digits and . _ -, of which a "
            "letter or digit comes first"
        )
    return value


Word = Annotated[
    str, AfterValidator(_check_word), WithJsonSchema({"type": "string", "pattern": WORD})
]
"""A name or a label."""

Reader = Literal["worker", "ray_data"]
"""Who reads the rows that a worker trains on."""

ReserveBy = Literal["record", "family"]
"""What the reserve is drawn by."""

Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""What every generator of torch and numpy takes."""


DATA: Literal["data"] = "data"
"""``max_steps`` of a run that ends with its data."""

StepCount = Positive | Literal["data"]
"""Optimizer steps of a run, or ``"data"``."""


class Quota(Section):
    """Rows that one route stream contributes to a step, over all workers."""

    rows: Positive
    every: Positive = Field(1, description="read at every k-th step, each stream in its turn")


class PlantedCanaries(Section):
    """Synthetic secrets planted beside corpora, for `govray runs audit`."""

    corpora: tuple[str, ...] = Field(min_length=1, description="each gets canaries of its own")
    format: Annotated[str, AfterValidator(check_format)] = Field(
        FORMAT, description="text with {name} and, behind it, {secret}"
    )
    digits: CanaryDigits = Field(8, description="of a secret")
    count: CanaryCount = Field(8, description="canaries in each corpus")
    repeats: CanaryRepeats = Field(16, description="how often an epoch reads each")
    seed: Natural = Field(0, description="what names and secrets are drawn from")
    coin: Natural | None = Field(
        None,
        description="number that keys a fair coin: it leaves about half of the canaries out, so "
        "that `govray runs audit` can bound privacy; without it all are planted",
    )

    @model_validator(mode="after")
    def _enough_for_a_coin(self) -> PlantedCanaries:
        check_coin(self.coin, self.count)
        return self

    def by_corpus(self) -> dict[str, Canaries]:
        """What is planted in each corpus."""
        return dict.fromkeys(self.corpora, Canaries(**self.model_dump(exclude={"corpora"})))


class Data(Section):
    """Where the corpora are and how they are read."""

    corpora: PlaceText = Field(description="folder of corpora, each with its signed credential")
    tokenizer: DiskPath = Field("bytes", description="'bytes' or a Hugging Face tokenizer.json")
    reserve: ReserveShare = Field(0.02, description="share of records never trained on")
    reserve_by: ReserveBy = Field(
        "family",
        description="what lies on one side of the reserve: near copies in all corpora together, or "
        "each record; of images each record",
    )
    rows_per_step: dict[str, Quota] = Field(
        description="profile name to rows a step; each route stream of that profile reads so many"
    )
    epochs: Positive = 1
    mixture: dict[str, Annotated[float, Field(gt=0, le=1000)]] = Field(
        default_factory=dict,
        description="corpus to how often an epoch of its stream reads it; 1 where not named",
    )
    attention: Literal["row", "record"] = Field(
        "row",
        description="what a token sees: what stands before it in its packed row, or in its record",
    )
    rows: RowKind = Field(
        "text",
        description="what the corpora's records are; their credentials have to say so too",
    )
    reader: Reader | None = Field(
        None,
        description="who reads prepared rows: each worker, or tasks of Ray Data; by default the "
        "worker where it can",
    )
    exclude: tuple[str, ...] = Field((), description="corpora left out, as tombstones of the plan")
    canaries: PlantedCanaries | None = Field(None, description="planted for `govray runs audit`")

    @model_validator(mode="after")
    def _canaries_are_text(self) -> Data:
        if self.canaries is not None and self.rows != "text":
            raise ValueError("canaries: they are planted in rows of text alone, leave them out")
        if self.reserve_by == "family" and self.rows == "images":
            raise ValueError("reserve_by: near copies are found in text, of images leave it out")
        return self

    @model_validator(mode="before")
    @classmethod
    def _images_have_no_families(cls, value: Any) -> Any:
        images = isinstance(value, dict) and value.get("rows") == "images"
        return {"reserve_by": "record", **value} if images else value

    @model_validator(mode="before")
    @classmethod
    def _rows_as_integers(cls, value: Any) -> Any:
        """`everything: 14` is short for `everything: {rows: 14}`."""
        if isinstance(value, dict) and isinstance(value.get("rows_per_step"), dict):
            rows = {
                profile: {"rows": quota} if isinstance(quota, int) else quota
                for profile, quota in value["rows_per_step"].items()
            }
            return {**value, "rows_per_step": rows}
        return value


class Governance(Section):
    """The signed policy and the root of trust that it is checked against."""

    policy: PlaceText
    trust_root: PlaceText
    delegations: tuple[PlaceText, ...] = Field(
        (), description="envelopes that delegate an authority"
    )
    revocations: tuple[PlaceText, ...] = Field(
        (), description="revocation lists; read again while the run goes on"
    )
    max_quarantined: Share = Field(0.25, description="share of records; above: refuse")


class Experiment(Section):
    """One governed training run."""

    name: Word
    project: Word | None = Field(
        None,
        description="the project of a submitted run, if its submitter names none; not for a run "
        "by hand",
    )
    description: Annotated[str, Field(max_length=LONGEST_DESCRIPTION)] = Field(
        "", description="one line about it, shown and found beside its name"
    )
    notes: Annotated[str, Field(max_length=LONGEST_NOTES)] = Field(
        "", description="text for those who look at it later"
    )
    labels: Annotated[tuple[Word, ...], Field(max_length=MOST_TAGS)] = Field(
        (), description="words to find it by: the tags of a run whose submitter gives none"
    )
    entrypoint: str = Field(
        "govray.engine.gpt:GPT",
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="module:class of the model, beside a function `loss(model, batch)`; or "
        "module:function of a training loop, whose one parameter is called config",
    )
    framework: FrameworkName = Field(
        StepSettings.framework,
        description="what computes gradients; over jax the entrypoint is a Flax model, or a "
        "training loop that calls govray.train.jax.govern",
    )
    hyperparameters: dict[str, Any] = Field(
        default_factory=dict,
        description="the model's arguments, or the loop's to read; context is tokens per row",
    )
    pretrained: DiskPath | None = Field(
        None,
        description="weights to start from: a .safetensors file, or a folder with them; a govray "
        "model folder brings its attested taint, others 'unknown'",
    )
    pretrained_optimizer: DiskPath | None = Field(
        None,
        description="the run whose attested model is in pretrained, or its last commit: the "
        "optimizer begins with the moments that it has there",
    )
    data: Data
    governance: Governance
    resources: Resources = Resources()
    environment: JobEnvironment | None = Field(
        None,
        description="what a submitted job runs in; not for a run by hand",
    )
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    ema: Ema | None = Field(
        None,
        description="an average of the weights, kept beside them; by default none",
    )
    max_steps: StepCount = Field(
        description="optimizer steps; data ends with the last step that has rows"
    )
    max_rows: Positive | None = Field(
        None,
        description="rows of one forward pass; a larger slice is accumulated over several "
        "(gradient accumulation)",
    )
    aggregator: AggregatorName = Field(
        StepSettings.aggregator,
        description="who sums gradients: govray's own buckets, torch's DDP or FSDP2; FSDP2 also "
        "shards the model over workers",
    )
    sharding: Sharding | None = Field(
        None,
        description="how many copies of the model workers hold; by default each worker has its "
        "share of one",
    )
    precision: Precision = Field(
        StepSettings.precision,
        description="fp32, bf16 (parameters in bfloat16 too) or bf16-mixed (forward alone)",
    )
    deterministic: bool = Field(
        False,
        description="only kernels that give equal bits for equal inputs on equal devices",
    )
    compile: bool = Field(
        StepSettings.compile,
        description="run blocks as graphs of torch.compile; needs a C++ compiler on every node",
    )
    cuda_graphs: bool = Field(
        StepSettings.cuda_graphs,
        description="capture forward and backward of each route, and launch them as CUDA graphs",
    )
    activation_checkpointing: bool = Field(
        StepSettings.activation_checkpointing,
        description="compute each block again in backward instead of keeping its activations",
    )
    seed: Seed = StepSettings.seed
    checkpoint: CheckpointEvery = CheckpointEvery()
    validation: Validation | None = None
    max_restarts: Natural = Field(
        5,
        description="after failures of the training code; lost workers and nodes don't count, and "
        "a refusal by governance is never retried",
    )
    collective_timeout_s: Positive = Field(
        StepSettings.collective_timeout_s,
        description="how long ranks wait for each other; a hanging rank ends the attempt",
    )
    preemption_timeout_s: Positive | None = Field(
        None,
        description="how long a run that is told to stop may take to commit, before it ends "
        "without; as long as its job may by default",
    )
    profiling: Profiling | None = Field(
        None,
        description="steps that torch's profiler traces; the trace lies beside the run",
    )
    tensorboard: bool = Field(
        False,
        description="write TensorBoard's files beside the run",
    )
    tracking: Tracking | None = Field(
        None,
        description="trackers that the driver tells of the run",
    )
    log_policies: LogPolicies = Field(
        (),
        description="what follows from a line of a worker's log",
    )
    storage_path: PlaceText = "runs"
    attestation_key: str = Field(
        "env:GOVRAY_KEY",
        description="a path, env:NAME, pkcs11:… or command:…; used on the driver only",
    )
    attestation_key_password_file: DiskPath | None = Field(
        None, description="file whose first line is the password of an encrypted key"
    )

    @field_validator("description")
    @classmethod
    def _is_a_line(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("a description is one line; write the rest into notes")
        return value

    @field_validator("notes")
    @classmethod
    def _is_text(cls, value: str) -> str:
        if not value.replace("\n", "").replace("\t", "").isprintable():
            raise ValueError("notes are lines of text, without control characters")
        return value

    @field_validator("attestation_key")
    @classmethod
    def _is_no_key(cls, value: str) -> str:
        check_reference(value)  # the experiment is recorded, and every worker gets it
        return value if is_outside(value) else check_path(value)

    @property
    def context(self) -> int:
        """Loss targets of a full row (T); a row of text holds T + 1 tokens."""
        return 1 if self.data.rows == "images" else int(self.hyperparameters["context"])

    def steps_in(self, planned: int) -> int:
        """How long its schedule runs: ``max_steps``, or the steps that its plan found data for."""
        return planned if self.max_steps == DATA else self.max_steps

    @property
    def steps(self) -> int:
        """How long its schedule runs, in the configuration that a loop gets.
        Raises ``ValueError``: ``max_steps`` is ``"data"``, and nothing is planned yet."""
        if self.max_steps == DATA:
            raise ValueError("max_steps: data is no number before the run is planned")
        return self.max_steps

    def trains_as(self, other: Experiment) -> bool:
        """Whether both are the same but for what people see of a run, and for when it starts."""
        mine, others = (each.model_dump(exclude=APART) for each in (self, other))
        return mine == others

    def resolved(self, vocabulary: int, separator: int) -> Experiment:
        """The same, with the hyperparameters that follow from the tokenizer.
        ``separator``: the id that begins a record."""
        if self.data.rows == "images":
            return self
        follows = {"vocabulary": vocabulary}
        if self.data.attention == "record":
            follows["separator"] = separator
        return self.model_copy(update={"hyperparameters": follows | self.hyperparameters})

    def check_rows(self, schema: RowSchema | None) -> None:
        """Compare the hyperparameters with what the corpora's rows hold.
        A hyperparameter of a tensor's name is its shape; ``classes`` is the schema's."""
        if schema is None or schema.tensors is None:
            return
        stated = {each.name: list(each.shape) for each in schema.tensors}
        for name, due in {**stated, "classes": schema.classes}.items():
            given = self.hyperparameters.get(name, due)
            if (list(given) if isinstance(given, tuple) else given) != due:
                raise UsageError(
                    f"hyperparameters.{name} is {given}, the corpora's row schema says {due}",
                    where=f"experiment {self.name}",
                    do=f"Write {name}: {due}, or build the corpora as the model needs them",
                )

    def _refuse_text_settings(self, context: Any) -> None:
        """Raises ``ValueError`` for what means something for packed text alone."""
        data = self.data
        for name, given in (
            ("hyperparameters.context", context is not None),
            ("data.attention", data.attention != "row"),
            ("data.tokenizer", data.tokenizer != "bytes"),
        ):
            if given:
                raise ValueError(f"{name}: rows of images have none, leave it out")

    @model_validator(mode="after")
    def _one_warm_up(self) -> Experiment:
        if self.schedule.name != COSINE and self.optimizer.warmup_steps:
            raise ValueError(
                "optimizer.warmup_steps: the default cosine's; begin schedule with "
                "torch.optim.lr_scheduler.LinearLR, and name the rest in then"
            )
        return self

    @model_validator(mode="after")
    def _graphs_are_of_a_gpu(self) -> Experiment:
        if self.cuda_graphs and not self.resources.gpus_per_worker:
            raise ValueError(
                "cuda_graphs: they are of a GPU; write resources.gpus_per_worker: 1, or leave "
                "cuda_graphs out"
            )
        return self

    @model_validator(mode="after")
    def _shares_its_copies(self) -> Experiment:
        if self.sharding is not None:
            if not AGGREGATORS[self.aggregator].shards:
                raise ValueError(
                    f"sharding: under aggregator {self.aggregator} each worker has the whole "
                    f"model; write aggregator: {SHARDING}, or leave it out"
                )
            check_copies(self.resources.num_workers, self.sharding.replicate)
        return self

    @property
    def settings(self) -> StepSettings:
        """How its steps compute.
        Raises ``UsageError``: some of it can't be joined, or is torch's and the framework is not.
        """
        named = {each.name for each in fields(StepSettings)} & type(self).model_fields.keys()
        found = StepSettings(
            clip_norm=self.optimizer.clip_norm, **{name: getattr(self, name) for name in named}
        )
        if self.framework == "jax":
            for name, given in (("ema", self.ema), ("deterministic", self.deterministic)):
                if given:
                    raise UsageError(
                        f"{name} is {given}, which is built over torch alone",
                        where="framework: jax",
                        do=f"Leave {name} out",
                    )
        return found

    @property
    def copies(self) -> int:
        """Copies of a model that workers share, where the aggregator shards."""
        return self.sharding.replicate if self.sharding else 1

    @property
    def threads(self) -> int:
        """Threads of one worker's kernels; part of bit reproducibility."""
        return max(1, int(self.resources.cpus_per_worker))

    @property
    def chosen_kernels(self) -> dict[str, str]:
        """What an attestation states of it: all that decide which kernels run, but defaults."""
        named = {name: getattr(self, name) for name in ("framework", "precision")}
        said = {name: each for name, each in named.items() if each != getattr(StepSettings, name)}
        switches = ("deterministic", "compile", "cuda_graphs")
        said |= {name: "on" for name in switches if getattr(self, name)}
        return {f"run.{name}": each for name, each in said.items()}

    @property
    def keep(self) -> Rules:
        """Which commits stay."""
        judged, every = self.validation, self.checkpoint
        return Rules(
            best=every.save_trial_best,
            latest=every.save_trial_latest,
            metric=judged.metric_name if judged else None,
            goal=judged.better if judged else "min",
        )

    @property
    def profiled(self) -> range:
        """Steps that rank 0 traces."""
        return self.profiling.range if self.profiling else range(0)

    @property
    def commit_steps(self) -> int | None:
        """Steps from one commit to the next; None if the clock says when."""
        every = self.checkpoint
        if every.every_minutes is not None:
            return None
        if every.every_validations is not None and self.validation is not None:
            return every.every_validations * self.validation.every_steps
        return every.every_steps or USUAL_STEPS

    @model_validator(mode="after")
    def _rates_its_commits(self) -> Experiment:
        if self.validation is None:
            if self.checkpoint.every_validations is not None:
                raise ValueError(
                    "checkpoint.every_validations: the run is not validated; add a section "
                    "validation, or give every_steps or every_minutes"
                )
        elif (commits := self.commit_steps) is not None:
            own = self.validation.every_steps
            if commits % own:
                raise ValueError(
                    f"validation.every_steps: of {own}, checkpoint.every_steps ({commits}) is no "
                    "multiple, so commits would have no metric to be the best by"
                )
        return self

    @model_validator(mode="after")
    def _has_context(self) -> Experiment:
        context = self.hyperparameters.get("context")
        if self.data.rows == "images":
            self._refuse_text_settings(context)
            return self
        if not isinstance(context, int) or not 1 <= context <= 1 << 20:
            raise ValueError("hyperparameters.context: give the tokens of a row, such as 256")
        return self


def read_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read and validate an experiment file.
    ``overrides``: ``path=value``, as `govray.governance.submission.yaml_overrides` reads them."""
    value, source = read_overridden(path, overrides)
    return parse_experiment(value, where=str(path), source=source)


def read_overridden(path: str | Path, overrides: Sequence[str] = ()) -> tuple[Any, Source | None]:
    """What a file holds, with the overrides and not yet validated, and where its fields stand.
    With overrides it is no file's any more. Raises as `read_experiment`."""
    text = _text(path)
    # As the queue reads it: a file that means one thing there does not mean another here.
    value = read_mapping(text, name=str(path))
    if overrides:
        return overridden(value, overrides), None
    return value, read_yaml(text, name=str(path))


def _text(path: str | Path) -> str:
    path = Path(path)
    try:
        return check_path(path).read_text("utf-8")
    except FileNotFoundError:
        raise UsageError(
            "no such experiment file", where=str(path), do="Start from jobs/train.yaml"
        ) from None
    except IsADirectoryError:
        raise UsageError(
            "this is a folder", where=str(path), do="Name an experiment file in it"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"not UTF-8 at byte {error.start + 1}",
            where=str(path),
            do="Name an experiment file, which is YAML",
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"not readable as YAML: {error}", where=str(path)) from error


def parse_experiment(
    value: Any,
    *,
    where: str,
    source: Source | None = None,
) -> Experiment:
    """Validate an experiment that is already parsed; see `read_experiment`.
    An error names a line where ``source`` has the text's lines."""
    if not isinstance(value, dict):
        raise UsageError("an experiment is a mapping", where=where, do="See jobs/train.yaml")
    try:
        return Experiment.model_validate(value)
    except ValidationError as error:
        raise UsageError(
            problems(error, Experiment),
            where=line_of(error, source) or where,
            do="`govray schema experiment` lists it",
        ) from None


def line_of(error: ValidationError, source: Source | None, *above: str) -> str | None:
    """``name:line`` of the first thing that is wrong, in the section ``above``, if known."""
    if source is None:
        return None
    places = (source.where(*above, *detail["loc"]) for detail in error.errors())
    # What is missing from the whole file has no line; what is misspelt instead has one.
    return next((each for each in places if each != source.name), source.name)


def problems(error: ValidationError, model: type[BaseModel]) -> str:
    """What is wrong with a ``model``'s source: each field, and the nearest name if it is
    misspelt."""
    return "; ".join(_problem(detail, model) for detail in error.errors())


def _problem(detail: Any, section: Any) -> str:
    field = ".".join(str(part) for part in detail["loc"])
    if detail["type"] != "extra_forbidden":
        message = str(detail["msg"]).removeprefix("Value error, ") + value_suggestion(detail)
        return f"{field}: {message}" if field else message
    for part in detail["loc"][:-1]:
        annotation = getattr(section, "model_fields", {}).get(part)
        section = annotation.annotation if annotation else None
    names = list(getattr(section, "model_fields", {}))
    return f"unknown field {field!r}{suggestion(str(detail['loc'][-1]), names)}"
