"""What a service answers to those who run things: the documents that scripts read.

The rest are JSON objects, as the reference of the HTTP API has them. Large counts are decimal
strings, as the service sends them. What a newer service says besides is left out.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Answered(BaseModel):
    """One answer, read-only."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", protected_namespaces=(), alias_generator=to_camel
    )


class ExperimentItem(Answered):
    """An experiment in a listing. What only a queue says is None of one started by hand."""

    id: str
    kind: str
    name: str
    project: str
    user: str
    state: str
    pool: str | None = None
    priority: int | None = None
    slots: int | None = None
    position: int | None = None
    policy: str | None = None
    archive: str | None = None
    forked_from: str | None = None
    job: str | None = None
    attempt: int | None = None
    failures: int | None = None
    submitted: str
    started: str | None = None
    finished: str | None = None
    why: str | None = None
    attested: str | None = None
    not_attested: str | None = None
    archived: bool
    tags: list[str]


class Experiment(ExperimentItem):
    """An experiment, with its file and its runs."""

    file: str | None = None
    config: dict[str, Any] | None = None
    description: str
    notes: str
    storage: str | None = None
    runs: list[str]


class PolicyKnown(Answered):
    """A depth policy that the service has."""

    name: str
    version: int
    digest: str


class ExperimentCheck(Answered):
    """What an experiment file asks for, before anything is submitted."""

    kind: str
    name: str
    project: str
    pool: str
    priority: int
    workers: int
    slots: int
    gpus: float
    runs: int
    steps: str | None = None
    rows_per_step: float
    tokens: str | None = None
    worker_hours: float | None = None
    policy_place: str
    policy: PolicyKnown | None = None
    unknown: list[str]
    file: str


class Run(Answered):
    """A run, as the index has it."""

    id: str
    experiment: str
    state: str
    hyperparameters: dict[str, Any]
    step: int
    max_steps: int
    loss: float | None = None
    objective: float | None = None
    attempts: int
    started: str
    finished: str | None = None
    why: str | None = None
    replay_of: str | None = None
    policy: str


class Metric(Answered):
    """One number of a run's step."""

    group: str
    name: str
    step: int
    attempt: int
    value: float | None = None
    archived: bool
    at: str | None = None


class Checkpoint(Answered):
    """A commit of a run."""

    step: int
    state: str
    digest: str | None = None
    bytes: str
    at: str | None = None


class CheckpointPin(Answered):
    """A commit that stays whatever the run's rules say."""

    step: int
    reason: str | None = None


class CheckpointPins(Answered):
    """Those of a run."""

    items: list[CheckpointPin]


class StoredFile(Answered):
    """A file of a model or a checkpoint."""

    name: str
    bytes: str
    digest: str


class StoredFiles(Answered):
    """Those that you may have. ``whole``: whether they are all."""

    items: list[StoredFile]
    whole: bool


class Deletion(Answered):
    """A run that is to be deleted, or its tombstone."""

    run: str
    experiment: str
    project: str
    at: str
    user: str
    gone_after: str
    restored: str | None = None
    begun: str | None = None
    gone: str | None = None
    why: str | None = None
    attested: bool
    bytes: str
    digests: dict[str, Any]


class Deletions(Answered):
    """Those of an experiment or project."""

    items: list[Deletion]


class Task(Answered):
    """A task in the queue. ``file`` is None in a listing, and for who may not see it."""

    id: str
    kind: str
    name: str
    project: str
    user: str
    state: str
    pool: str
    submitted: str
    started: str | None = None
    finished: str | None = None
    why: str | None = None
    shown: bool
    file: str | None = None


class Model(Answered):
    """A registered model. The public sees its name alone."""

    name: str
    description: str | None = None
    labels: dict[str, str] | None = None
    production: str | None = None


class Validation(Answered):
    """The number that a version's run was judged by, as its attestation states it."""

    metric: str
    goal: str
    value: float
    corpora: list[str]


class Version(Answered):
    """A version of a model. The public sees which attestation it has."""

    model: str
    version: str
    attestation: str
    stage: str | None = None
    labels: dict[str, str] | None = None
    validation: Validation | None = None
    notes: str | None = None
    created: str | None = None
    user: str | None = None


class FoundVersion(Answered):
    """A version, and what its attestation states that can be asked for."""

    model: str
    version: str
    attestation: str
    stage: str | None = None
    validation: Validation | None = None
    assurance: str
    isolation: str
    finished: str


class Promoted(Answered):
    """A version that moved to another stage."""

    model: str
    version: str
    before: str
    after: str
    replaced: str | None = None


class AttestationItem(Answered):
    """An attestation in a listing; a supplier sees digest, name and whether it is public."""

    digest: str
    name: str
    public: bool
    run: str | None = None
    signer: str | None = None
    policy: str | None = None
    trust_root: str | None = None
    assurance: str | None = None


class Archive(Answered):
    """A working directory on the cluster's storage."""

    digest: str
    bytes: str
