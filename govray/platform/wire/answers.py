"""What a service answers to those who run things: its routes make these documents, and the client
reads them. All other answers are JSON objects, as the reference of the HTTP API has them.

Large counts are decimal strings. What a newer service says besides is left out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from govray.platform.store.states import ExperimentState, RunState

Decimal = Annotated[str, BeforeValidator(str), Field(pattern="^(0|[1-9][0-9]{0,18})$")]
"""A whole number of the store as a decimal string, since JSON readers may round large ones."""

MOST_RUNS = 500
"""That an experiment is answered with; `/v1/runs` lists all."""


class Answer(BaseModel):
    """The base of response models. Fields that are ``None`` are ``null``."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        from_attributes=True,
        frozen=True,
        protected_namespaces=(),
    )


class ExperimentItem(Answer):
    """An experiment. What only a queue says is null of one that was started by hand."""

    id: str
    kind: str = Field(description="`train`, or `tune` for a search.")
    name: str
    project: str
    user: str
    state: ExperimentState
    pool: str | None
    priority: int | None
    slots: int | None = Field(description="Workers that it holds while it runs.")
    position: int | None = Field(
        default=None,
        description="Its place in its pool's queue by priority and time, from 1, while it waits. "
        "A pool that is shared by project may take another first.",
    )
    policy: str | None = Field(description="Digest of the depth policy that it has to have.")
    archive: str | None = Field(description="Digest of its working directory.")
    forked_from: str | None = Field(description="The experiment that it is a fork of.")
    job: str | None = Field(description="The cluster's name of its last job.")
    attempt: int | None = Field(description="Jobs so far.")
    failures: int | None = Field(description="Jobs that failed since its last progress.")
    submitted: str = Field(description="Of one by hand: when it started.")
    started: str | None
    finished: str | None
    why: str | None = Field(description="Why it is in its state.")
    attested: str | None = Field(
        description="`ATTESTED` or `NOT_ATTESTED`, once an attestor has decided; else null."
    )
    not_attested: str | None = Field(description="Why its model was not signed; else null.")
    archived: bool
    tags: list[str]


class Experiment(ExperimentItem):
    """An experiment with its file and its runs."""

    file: str | None = Field(description="As it was sent, or with its overrides.")
    config: dict[str, Any] | None = Field(description="As its runs read it; null: none is indexed.")
    description: str = Field(description="One line about it, as its runs read it.")
    notes: str = Field(description="Text about it, as its runs read it.")
    storage: str | None = Field(description="Where its runs lie; null: none is indexed.")
    runs: list[str] = Field(description=f"The first {MOST_RUNS} that are indexed, by their start.")


class PolicyKnown(Answer):
    """The policy at the place that the file names, as the latest run of this name read it."""

    name: str
    version: int
    digest: str


class ExperimentCheck(Answer):
    """What an experiment would take at most, and which policy applies, as far as can be said."""

    kind: str
    name: str
    project: str
    pool: str
    priority: int
    workers: int = Field(description="Of one run; of an elastic one the most.")
    slots: int = Field(description="Workers at once, of all runs together.")
    gpus: float = Field(description="Devices at once.")
    runs: int = Field(description="1 without a search.")
    steps: str | None = Field(
        default=None,
        description="Of all runs together, if none ends early; null: the run ends with its data.",
    )
    rows_per_step: float = Field(description="Of one run, one route stream a profile.")
    tokens: str | None = Field(default=None, description="Of all runs together; null for images.")
    worker_hours: float | None = Field(default=None, description="null: not known.")
    policy_place: str = Field(description="Where the file says that the policy lies.")
    policy: PolicyKnown | None = Field(
        default=None, description="null: no run of this name read it there."
    )
    unknown: list[str] = Field(description="What cannot be said yet, and why.")
    file: str = Field(description="The file with the overrides.")


class Run(Answer):
    """One run."""

    id: str
    experiment: str
    state: RunState
    hyperparameters: dict[str, Any]
    step: int
    max_steps: int
    loss: float | None = None
    objective: float | None = None
    world_size: int | None = None
    attempts: int
    started: str
    finished: str | None = None
    why: str | None = None
    replay_of: str | None = Field(default=None, description="The run that this one replayed.")
    code: str
    policy: str
    manifest: str
    worker_seconds: float
    accelerator_seconds: float


class Metric(Answer):
    """One number of one step."""

    group: str
    name: str
    step: int
    attempt: int
    value: float | None = Field(default=None, description="null: the number was not finite.")
    archived: bool = Field(description="A restart or rollback ran the step again.")
    at: str | None = None


class Checkpoint(Answer):
    """A commit of a run that is whole, or was."""

    step: int
    state: Literal["COMPLETED", "DELETED"]
    digest: str | None = None
    bytes: Decimal
    at: str | None = None


class CheckpointPin(Answer):
    """A checkpoint that stays, and why."""

    step: int
    reason: str | None = Field(description="null: nothing pins it.")


class CheckpointPins(Answer):
    """The checkpoints of a run that stay, by step."""

    items: list[CheckpointPin]


class File(Answer):
    """A file, and what its bytes have to be."""

    name: str
    bytes: Decimal
    digest: str = Field(examples=["sha256:" + "7c" * 32])


class Files(Answer):
    """The files that you may have, by name."""

    items: list[File]
    whole: bool = Field(description="Whether these are all. Adapters are given by right.")


class Deletion(Answer):
    """A run that is to be deleted, or was."""

    run: str
    experiment: str
    project: str
    at: str = Field(description="When it was marked.")
    user: str
    gone_after: str = Field(description="When it is removed, at the earliest.")
    restored: str | None = Field(description="When the mark was taken back: it stays.")
    begun: str | None = Field(description="When its removal began. From then on it stays deleted.")
    gone: str | None = Field(description="When it was gone from the storage.")
    why: str | None = Field(description="Why it is still there, though it is due.")
    attested: bool = Field(
        description="It has a model: this stays with its evidence, and the checkpoints go."
    )
    bytes: Decimal = Field(description="Of its checkpoints.")
    digests: dict[str, Any] = Field(
        description="Of its checkpoints, code, policy, prepared data and attestations."
    )


class Deletions(Answer):
    """What became of each run of an experiment or project."""

    items: list[Deletion]


class Task(Answer):
    """A task in the queue."""

    id: str
    kind: str = Field(description="As its file says, such as `notebook`.")
    name: str
    project: str
    user: str
    state: ExperimentState
    pool: str
    submitted: str
    started: str | None
    finished: str | None
    why: str | None
    shown: bool = Field(description="Whether it can be opened: it answers over HTTP while it runs.")
    file: str | None = Field(
        default=None,
        description="For who submitted it, and for engineers and admins of its project. A listing "
        "leaves it out.",
    )


class JudgedBy(Answer):
    """The number that a version's run was judged by, as its attestation states it."""

    metric: str
    goal: Literal["min", "max"]
    value: float
    corpora: list[str] = Field(
        description="What it was measured on; none: the training loop measured it by itself."
    )


class VersionReference(Answer):
    """A version, as suppliers and the public see it."""

    model: str
    version: str
    attestation: str = Field(description="Digest of the attestation that it was made of.")


class Promoted(Answer):
    """A change of stage that was made."""

    model: str
    version: str
    before: str
    after: str
    replaced: str | None = Field(description="The version that was in production until then.")


class FoundVersion(VersionReference):
    """A version, and what its attestation states that can be asked for."""

    stage: str | None = Field(description="For staff, and roles where its run lies.")
    validation: JudgedBy | None
    assurance: str = Field(description="Its level, as the attestation states it.")
    isolation: str = Field(description="Of its run, as the attestation states it.")
    finished: str = Field(description="When its run finished.")


class AttestationItem(Answer):
    """An attestation in a listing.

    A supplier gets ``digest``, ``name`` and ``public`` of a model that used its corpora; the rest
    is for those who may read the whole attestation.
    """

    digest: str = Field(examples=["sha256:" + "7c" * 32])
    name: str = Field(examples=["python-source-gpt"])
    public: bool
    run: str | None = None
    signer: str | None = None
    policy: str | None = None
    trust_root: str | None = None
    assurance: str | None = None
    started: str | None = None
    finished: str | None = None
    revoked: str | None = Field(
        default=None, description="Since when it is revoked, by the lists that the service has."
    )


class Archive(Answer):
    """An archive that is there. Submit with its digest as `archive`."""

    digest: str
    bytes: Decimal = Field(description="Of the archive.")


# A model and a version as any caller reads them: what the public does not see is None. The service
# has a class for each audience instead, so that none can hold what it may not see.


class Model(Answer):
    """A registered model. The public sees its name alone."""

    name: str
    description: str | None = None
    labels: dict[str, str] | None = None
    production: str | None = None


class Version(VersionReference):
    """A version of a model. The public sees which attestation it has."""

    stage: str | None = None
    labels: dict[str, str] | None = None
    validation: JudgedBy | None = None
    notes: str | None = None
    created: str | None = None
    user: str | None = None
