"""The tables. One class each; the columns say what is signed, what is stated and what is derived.

Conventions

* A digest is text, ``sha256:<64 hex>``; an instant is text, ``YYYY-MM-DDTHH:MM:SSZ``, whose order
  is the order of time; both are equal on SQLite and PostgreSQL.
* An ``envelope`` column holds exact signed bytes, which are verified before they are stored and
  never changed. Every other column of such a row is derived from them.
* A ``*_key`` of a record is its leaf, so the tables alone confirm no guess. That of a canary is its
  SHA-256.
* A state is text in the database, so it is the same on both, and a new one needs no migration.
  SQLAlchemy refuses other texts, on reading and on writing.
* Nothing refers by row number: keys are names and digests, so an index that is made again from
  storage has the same ones.

``migrations/`` makes these tables; a test compares them.
"""

from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, Enum, Index, LargeBinary
from sqlalchemy.orm import declared_attr
from sqlmodel import AutoString, Field, SQLModel

from govray.governance.submission.register_forms import Isolation
from govray.platform.store.states import (
    CaseState,
    CheckpointState,
    DeliveryState,
    ExperimentState,
    RunState,
)

# No `from __future__ import annotations`: SQLModel reads the annotations themselves.

Json = dict[str, Any]


def _state(kind: type[StrEnum]) -> Enum:
    return Enum(
        kind,
        native_enum=False,
        length=32,
        validate_strings=True,
        values_callable=lambda states: [state.value for state in states],
    )


class _Row(SQLModel):
    """A row of the table that is named as its class, in lower case and without ``Row``."""

    @declared_attr.directive
    def __tablename__(cls) -> str:  # noqa: N805  (SQLAlchemy gives the class)
        return cls.__name__.removesuffix("Row").lower()


class ExperimentRow(_Row, table=True):
    """What one experiment file asked for. Its runs are a search's trials, or its one run.

    ``storage`` is the storage path or URL that its runs lie under, ``project`` and ``user`` whom
    the usage is counted for.
    """

    id: str = Field(primary_key=True)
    name: str = Field(index=True)
    kind: str = Field(description="`train`, or `tune` for a search.")
    state: ExperimentState = Field(sa_type=_state(ExperimentState))
    project: str = Field(index=True)
    user: str = Field(index=True)
    storage: str
    config: Json = Field(sa_type=JSON)
    description: str = Field(default="", description="One line about it, as its file has it.")
    notes: str = Field(default="", description="Text about it, as its file has it.")
    started: str = Field(index=True)
    finished: str | None = None
    why: str | None = Field(default=None, description="Why it stopped, if it did not complete.")


class RunRow(_Row, table=True):
    """One run. ``id`` is the run's name; its ``folder`` lies below the experiment's storage.

    ``loss`` and ``objective`` are the last ones known. ``code`` is the digest of govray's own
    source. ``accelerators`` is how many one worker held; the usage columns are sums over its
    attempts.
    """

    id: str = Field(primary_key=True)
    experiment: str = Field(foreign_key="experiment.id", index=True)
    state: RunState = Field(sa_type=_state(RunState))
    hyperparameters: Json = Field(sa_type=JSON)
    step: int
    max_steps: int
    loss: float | None = None
    objective: float | None = None
    world_size: int | None = None
    attempts: int
    started: str = Field(index=True)
    finished: str | None = None
    why: str | None = None
    replay_of: str | None = Field(
        default=None, index=True, description="The run that this one replayed."
    )
    code: str
    policy: str = Field(index=True)
    manifest: str
    folder: str
    worker_seconds: float = 0
    accelerator_seconds: float = 0
    read_bytes: int = Field(default=0, sa_type=BigInteger)
    """How much of the event log is indexed."""
    reading: Json = Field(default_factory=dict, sa_type=JSON)
    """What the indexer goes on with there."""


class MetricRow(_Row, table=True):
    """One number of one step. ``group`` is any name: ``training``, ``validation``, ``monitor`` …

    A step that a restart or rollback ran again supersedes the numbers of the attempt before:
    those stay, ``archived``.

    ``resolution`` is 0 for the few numbers of a line that show all of it. It is 1 for about as many
    more, and 2 for twice as many (`govray.platform.indexing.run_rows`).
    """

    __table_args__ = (
        Index("ix_metric_drawn", "run", "archived", "resolution", "group", "name", "step"),
    )

    run: str = Field(primary_key=True, foreign_key="run.id")
    group: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    step: int = Field(primary_key=True)
    attempt: int = Field(primary_key=True)
    value: float
    archived: bool = False
    resolution: int = 0
    at: str | None = None


class CheckpointRow(_Row, table=True):
    """A commit of a run. ``digest`` is its manifest's, known once it is whole.

    ``at`` is when it became so, by the run's event log; none where that does not say it.
    """

    run: str = Field(primary_key=True, foreign_key="run.id")
    step: int = Field(primary_key=True)
    state: CheckpointState = Field(sa_type=_state(CheckpointState))
    digest: str | None = None
    bytes: int = Field(default=0, sa_type=BigInteger)
    at: str | None = None


class DecisionRow(_Row, table=True):
    """A stop, restart, gate, flag, rollback or refusal, with its reason and evidence.

    ``source`` says where it is from: ``events`` or ``ledger``, or ``search``.
    """

    run: str = Field(primary_key=True, foreign_key="run.id")
    source: str = Field(primary_key=True)
    number: int = Field(primary_key=True)
    kind: str = Field(index=True)
    at: str | None = None
    step: int | None = None
    corpus: str | None = Field(default=None, index=True)
    reason: str
    evidence: Json = Field(sa_type=JSON)


class TrustRootRow(_Row, table=True):
    """A trust root that something here was verified against."""

    digest: str = Field(primary_key=True)
    name: str
    version: int
    envelope: bytes = Field(sa_type=LargeBinary)


class Delegations(SQLModel, table=True):
    """Delegations that something here was verified with, beside a trust root.

    ``lines`` is a model's ``governance/delegations.jsonl``, ``digest`` that of its bytes.
    """

    trust_root: str = Field(primary_key=True, foreign_key="trustroot.digest")
    digest: str = Field(primary_key=True)
    lines: bytes = Field(sa_type=LargeBinary)


class PolicyRow(_Row, table=True):
    """A signed depth policy."""

    digest: str = Field(primary_key=True)
    name: str = Field(index=True)
    version: int
    signer: str
    envelope: bytes = Field(sa_type=LargeBinary)


class CredentialRow(_Row, table=True):
    """A signed credential. ``supplier`` is the authority that issued it.

    Its records are committed under ``commitment``. ``secret`` opens them and is masked
    (`store_secret.mask_secret`). It is absent where it was not at hand when a model was indexed.
    """

    digest: str = Field(primary_key=True)
    corpus: str = Field(index=True)
    supplier: str = Field(index=True)
    license: str
    category: str
    jurisdiction: str
    sensitivity: str
    valid_from: str
    valid_until: str
    records: int = Field(sa_type=BigInteger)
    commitment: str
    secret: bytes | None = Field(default=None, sa_type=LargeBinary)
    envelope: bytes = Field(sa_type=LargeBinary)


class Corpus(SQLModel, table=True):
    """A corpus name and whose it is.

    Of several credentials, the one that is valid from the latest says whose; the most sensitive
    says how sensitive.
    """

    name: str = Field(primary_key=True)
    supplier: str = Field(index=True)
    sensitivity: str


class AttestationRow(_Row, table=True):
    """A verified attestation. ``digest`` is of its statement, ``envelope_digest`` of its bytes.

    ``public``: anyone may read it. ``folder`` is where the model lies, for downloads. ``lineage``
    is derived: what `govray.platform.store.lineage` says of it, ready to be sent. ``has_records``:
    its records were at hand when it was indexed.

    ``isolation`` is its execution's. ``metric``, ``goal`` and ``value`` are its validation's, and
    ``validated_on`` the corpora that this was measured on, with commas between. It is empty where
    the training loop measured it by itself.
    """

    digest: str = Field(primary_key=True)
    run: str = Field(index=True)
    name: str
    signer: str
    trust_root: str = Field(foreign_key="trustroot.digest")
    policy: str = Field(foreign_key="policy.digest")
    assurance: str
    started: str
    finished: str
    public: bool = False
    folder: str | None = None
    has_records: bool = True
    isolation: Isolation = Field(sa_type=AutoString)
    metric: str | None = None
    goal: str | None = None
    value: float | None = None
    validated_on: str = ""
    envelope_digest: str
    envelope: bytes = Field(sa_type=LargeBinary)
    lineage: bytes = Field(sa_type=LargeBinary)


class SubjectRow(_Row, table=True):
    """A file that an attestation is about."""

    attestation: str = Field(primary_key=True, foreign_key="attestation.digest")
    name: str = Field(primary_key=True)
    sha256: str = Field(index=True)


class CoverageRow(_Row, table=True):
    """What one attestation says of one (corpus, layer group).

    ``category`` is the licence category under which the corpus was admitted.
    """

    __table_args__ = (
        Index("coverage_by_group", "attestation", "layer_group"),
        Index("coverage_by_category", "attestation", "category", "layer_group"),
    )

    attestation: str = Field(primary_key=True, foreign_key="attestation.digest")
    corpus: str = Field(primary_key=True)
    layer_group: str = Field(primary_key=True)
    category: str
    tokens: int = Field(sa_type=BigInteger)
    norm_share: float | None = None
    direct: bool
    transitive: bool
    level: int | None = None


class Inherited(SQLModel, table=True):
    """What reached a layer group of one attested model from outside its run.

    ``source`` is a corpus, or ``unknown`` where no attestation speaks for the start. ``start``: the
    weights that the run started from had it in this group; else it came through other groups.
    ``category`` is the licence category of a corpus that the run admitted too. Of any other the
    attestation states none: ``unknown``.
    """

    attestation: str = Field(primary_key=True, foreign_key="attestation.digest")
    layer_group: str = Field(primary_key=True)
    source: str = Field(primary_key=True)
    category: str
    start: bool


class Origin(SQLModel, table=True):
    """What one attested run began with. That is the name of a run whose state it went on from, or
    the digest of a file of weights."""

    attestation: str = Field(primary_key=True, foreign_key="attestation.digest")
    what: str = Field(primary_key=True, index=True)


class CorpusUseRow(_Row, table=True):
    """What one attested run used of one corpus, and in which steps."""

    corpus: str = Field(primary_key=True)
    attestation: str = Field(primary_key=True, foreign_key="attestation.digest")
    credential: str
    records: int = Field(sa_type=BigInteger)
    rows: int = Field(sa_type=BigInteger)
    tokens: int = Field(sa_type=BigInteger)
    steps: int = Field(sa_type=BigInteger)
    first_step: int | None = None
    last_step: int | None = None


class Record(SQLModel, table=True):
    """Where one record of a corpus stands in one attested run.

    ``steps`` are the first of ``step_count`` that read it, ascending; which layer groups they
    updated follows from the corpus's route. ``record`` is its index in Merkle order, canaries
    behind the corpus's own. ``split`` is ``train``, ``reserve`` or ``empty``. ``tokens`` counts its
    own tokens in the rows that were read.
    """

    record_key: str = Field(primary_key=True)
    attestation: str = Field(primary_key=True, foreign_key="attestation.digest")
    corpus: str = Field(primary_key=True)
    record: int = Field(primary_key=True, sa_type=BigInteger)
    split: str
    tokens: int = Field(sa_type=BigInteger)
    step_count: int
    steps: list[int] = Field(sa_type=JSON)


class LedgerRow(_Row, table=True):
    """The longest signed head of a run's ledger, and the folder of its tiles: empty if none."""

    run: str = Field(primary_key=True)
    origin: str
    size: int = Field(sa_type=BigInteger)
    root: str
    checkpoint: bytes = Field(sa_type=LargeBinary)
    tiles: str


class Head(SQLModel, table=True):
    """A signed head of a run's ledger that was seen, kept for ever; ``Ledger`` has the longest."""

    run: str = Field(primary_key=True)
    size: int = Field(primary_key=True, sa_type=BigInteger)
    root: str = Field(primary_key=True)
    checkpoint: bytes = Field(sa_type=LargeBinary)


class MemorizationManifestRow(_Row, table=True):
    """What an audit stated of a model, by the digest of its weights."""

    digest: str = Field(primary_key=True)
    run: str = Field(index=True)
    weights: str = Field(index=True)
    signer: str
    made: str
    envelope: bytes = Field(sa_type=LargeBinary)


class ModelRow(_Row, table=True):
    """A name in the registry."""

    name: str = Field(primary_key=True)
    description: str = ""
    labels: Json = Field(sa_type=JSON)
    created: str
    user: str


class ModelVersion(SQLModel, table=True):
    """One version of a model: an attestation with a semantic version.

    ``major`` … ``patch`` are its numbers, for the order. ``stage`` is ``none``, ``staging``,
    ``production`` or ``archived``.
    """

    model: str = Field(primary_key=True, foreign_key="model.name")
    version: str = Field(primary_key=True)
    major: int
    minor: int
    patch: int
    attestation: str = Field(foreign_key="attestation.digest", index=True)
    stage: str
    labels: Json = Field(sa_type=JSON)
    notes: str = ""
    created: str
    user: str


class UserRow(_Row, table=True):
    """Who may ask. ``supplier`` is the authority whose corpora a supplier owns."""

    __tablename__ = "account"  # "user" is a reserved word of PostgreSQL

    name: str = Field(primary_key=True)
    role: str
    supplier: str | None = Field(default=None, index=True)
    disabled: bool = False
    created: str


class Token(SQLModel, table=True):
    """A bearer token, of which only the SHA-256 is kept. ``id`` is public and not secret."""

    id: str = Field(primary_key=True)
    user: str = Field(foreign_key="account.name", index=True)
    secret_sha256: str
    scopes: list[str] = Field(sa_type=JSON)
    name: str
    created: str
    expires: str
    revoked: str | None = None


class BrowserSession(SQLModel, table=True):
    """Somebody who is signed in in a browser. ``id`` is public; of the secret the SHA-256 is kept.

    ``token`` is the token that it was begun with: role, scopes and end are read from there each
    time. Without one an identity provider said who it is, and the columns are what it said.
    ``used`` is when it was last used, within some minutes.
    """

    id: str = Field(primary_key=True)
    secret_sha256: str
    user: str = Field(index=True)
    role: str
    supplier: str | None = None
    scopes: list[str] = Field(sa_type=JSON)
    groups: list[str] = Field(sa_type=JSON)
    token: str | None = Field(default=None, foreign_key="token.id")
    created: str
    used: str
    expires: str = Field(index=True)


class SignInAttempt(SQLModel, table=True):
    """A sign-in that somebody began at an identity provider, and from where to go on after it.

    ``secret_sha256`` is of what the browser holds. What the provider is sent follows from that.
    """

    secret_sha256: str = Field(primary_key=True)
    following: str
    expires: str = Field(index=True)


class Repeat(SQLModel, table=True):
    """A request of ``user`` with an ``Idempotency-Key``.

    ``key`` and ``body`` are digests over the key, which nobody has here. ``holder`` is of the
    request that holds it. ``done``: what it makes is written. ``status``, ``headers`` and
    ``answer`` are what it was answered, where that is kept.
    """

    key: str = Field(primary_key=True)
    body: str
    holder: str
    user: str = Field(index=True)
    expires: str = Field(index=True)
    done: bool = False
    status: int | None = None
    headers: dict[str, str] | None = Field(default=None, sa_type=JSON)
    answer: str | None = None


class WorkspaceRow(_Row, table=True):
    """A part of the organisation, which is the store: projects that belong together."""

    name: str = Field(primary_key=True)
    description: str = ""
    archived: bool = False
    created: str
    user: str


class ProjectRow(_Row, table=True):
    """What experiments are counted for, and whose they are. ``settings`` is its config policy.

    ``deleted`` is when it was deleted: the row stays, and with it the name.
    """

    name: str = Field(primary_key=True)
    workspace: str = Field(foreign_key="workspace.name", index=True)
    description: str = ""
    archived: bool = False
    deleted: str | None = None
    settings: Json = Field(sa_type=JSON)
    created: str
    user: str


class RoleBinding(SQLModel, table=True):
    """What a user or group may do in a part of the organisation, and until when.

    ``scope`` is ``organisation``, ``workspace`` or ``project``, and ``place`` the name of that,
    empty for the first. ``id`` is derived from all of these but ``until``.
    """

    id: str = Field(primary_key=True)
    subject_kind: str = Field(description="`user` or `group`.")
    subject: str = Field(index=True)
    role: str
    scope: str
    place: str = Field(index=True)
    until: str | None = None
    made: str
    user: str


class QueueEntry(SQLModel, table=True):
    """An experiment or task that somebody submitted: an entry of the queue. ``id`` is its own, and
    that of its experiment in the index.

    ``config`` is the text that was sent, never changed. ``slots`` are the workers that it holds
    while it runs. ``attempt`` counts its jobs on the cluster, and ``failures`` those that ended
    without being asked to since its last progress. ``position`` is its place in its pool's line,
    from 1, while it waits. `govray.platform.service.routes.experiments` says what the rest is.

    ``token`` is the id of the token it came with. ``trace`` is the span that it came in, as a
    ``traceparent`` (W3C Trace Context), where traces are on.

    An entry that can go on with ``least`` slots may be told to keep ``cap`` of them, at the time
    ``capped``, for the entry ``gives_to``. ``cap_number`` counts what it was told. It has given the
    others back once ``held`` says so. Where these are null it holds all its slots. ``node`` is the
    IP address of the node that runs its job, as the cluster says.

    ``worker_seconds`` and ``accelerator_seconds`` are those of a task's attempts that have ended.
    Of an experiment its runs have them.

    Unlike the index of runs this cannot be made again from storage: back it up.
    """

    id: str = Field(primary_key=True)
    kind: str
    name: str = Field(index=True)
    project: str = Field(index=True)
    user: str = Field(index=True)
    state: ExperimentState = Field(sa_type=_state(ExperimentState), index=True)
    pool: str
    priority: int
    slots: int
    config: str
    policy: str | None = None
    archive: str | None = None
    forked_from: str | None = None
    job: str | None = None
    attempt: int = 0
    failures: int = 0
    submitted: str = Field(index=True)
    started: str | None = None
    finished: str | None = None
    why: str | None = None
    position: int | None = None
    attested: str | None = None
    not_attested: str | None = None
    archived: bool = False
    token: str | None = None
    least: int | None = None
    cap: int | None = None
    cap_number: int = Field(default=0, sa_column_kwargs={"server_default": "0"})
    capped: str | None = None
    gives_to: str | None = None
    held: int | None = None
    node: str | None = None
    trace: str | None = None
    worker_seconds: float = 0
    accelerator_seconds: float = 0


class Lease(SQLModel, table=True):
    """Who alone does something, until when: one row for each ``name``. Taken by compare-and-set."""

    name: str = Field(primary_key=True)
    holder: str
    until: str


class PoolRow(_Row, table=True):
    """A pool of the queue, as whoever works the queue off has it in its settings.

    ``slots`` are the workers that it has room for, ``labels`` those that each of its nodes has.
    ``most`` are the slots that a project may hold, by name, ``most_others`` those of all others.
    ``folder``: whether a job that brings no working directory gets one. ``gpus`` are those of a
    slot. ``isolation``: what else could reach a run in it. Nobody has to have worked it off yet:
    then there is no row, and how large it is nobody knows.
    """

    name: str = Field(primary_key=True)
    slots: int
    gpus: float = 0
    labels: dict[str, str] = Field(default_factory=dict, sa_type=JSON)
    most: dict[str, int | None] = Field(default_factory=dict, sa_type=JSON)
    most_others: int | None = None
    folder: bool = False
    isolation: Isolation = Field(default="sharedCluster", sa_type=AutoString)


class ExperimentTag(SQLModel, table=True):
    """A word that somebody put on an experiment, to find it by.

    It refers to an experiment by name alone: a rebuild makes experiments again, and keeps tags.
    """

    experiment: str = Field(primary_key=True)
    tag: str = Field(primary_key=True, index=True)


class WebhookRow(_Row, table=True):
    """An address that is told of events. ``project`` none: of all projects.

    ``secret`` signs what is sent and is masked (`govray.platform.store.webhooks.mask`).
    """

    id: str = Field(primary_key=True)
    url: str
    kinds: list[str] = Field(sa_type=JSON)
    project: str | None = None
    secret: bytes = Field(sa_type=LargeBinary)
    created: str
    user: str


class Alert(SQLModel, table=True):
    """Something that happened and was noticed, once: kind, subject and ``mark`` say which.

    ``id`` is their digest, so an index that is made again notices nothing twice. ``at`` is when it
    happened, ``noticed`` when that was seen.
    """

    __table_args__ = (Index("alert_by_cause", "kind", "subject", "mark", unique=True),)

    id: str = Field(primary_key=True)
    kind: str
    subject: str
    mark: str
    at: str = Field(index=True)
    noticed: str
    project: str | None = None
    data: Json = Field(sa_type=JSON)


class Delivery(SQLModel, table=True):
    """One alert for one webhook. Its sender holds it ``until`` a time.

    ``due`` is when it is tried next, ``status`` the last answer's, ``why`` what went wrong.
    """

    __table_args__ = (Index("delivery_by_turn", "state", "due"),)

    webhook: str = Field(primary_key=True, foreign_key="webhook.id")
    alert: str = Field(primary_key=True, foreign_key="alert.id")
    state: DeliveryState = Field(sa_type=_state(DeliveryState))
    tries: int = 0
    due: str
    holder: str | None = None
    until: str | None = None
    status: int | None = None
    why: str | None = None
    delivered: str | None = None


class Reverification(SQLModel, table=True):
    """What verifying a registered model again gave, from ``since`` to ``checked``.

    A row lasts as long as the outcome does: ``verified``, ``failed`` or ``could not check``.
    Attestations are named, not referred to: this outlives an index that is made again.
    """

    attestation: str = Field(primary_key=True)
    number: int = Field(primary_key=True)
    outcome: str
    why: str | None = None
    since: str
    checked: str


class TaskTicket(SQLModel, table=True):
    """What lets somebody see a task: once (``entry``) or for some hours (``session``).

    ``digest`` is the SHA-256 of its secret, ``token`` the id of the token that asked for it.
    """

    __tablename__ = "task_ticket"

    digest: str = Field(primary_key=True)
    task: str = Field(index=True)
    user: str
    token: str | None = None
    use: str
    expires: str = Field(index=True)


class RightsCase(SQLModel, table=True):
    """Somebody's question whether a work was used, and what became of it. ``id`` is its number.

    ``model`` none: all public models. Either ``content`` was asked about, whose digest and size
    stay, or ``domains``. The bytes are there until the case is closed. ``found`` is what the last
    search found (`CaseSearch`), with the names of corpora; ``answer`` the signed part that the
    requester sees. ``released`` are the corpora that it names. ``links`` are the versions whose
    attestations show what was decided.

    Of the key that the requester was given, the SHA-256 is kept. Attestations are named, not
    referred to: a case outlives an index that is made again.
    """

    id: str = Field(primary_key=True)
    state: CaseState = Field(sa_type=_state(CaseState), index=True)
    model: str | None = Field(default=None, index=True)
    contact: str
    requester: str = Field(description="The user that asked; `public` without a token.")
    key_sha256: str
    sha256: str | None = None
    size: int | None = Field(default=None, sa_type=BigInteger)
    domains: list[str] = Field(sa_type=JSON, default_factory=list)
    content: bytes | None = Field(default=None, sa_type=LargeBinary)
    received: str = Field(index=True)
    searched: str | None = None
    found: Json = Field(sa_type=JSON, default_factory=dict)
    answered: str | None = None
    answer: bytes | None = Field(default=None, sa_type=LargeBinary)
    released: list[str] = Field(sa_type=JSON, default_factory=list)
    decision: str | None = None
    reason: str | None = None
    decided: str | None = None
    decided_by: str | None = None
    links: list[Json] = Field(sa_type=JSON, default_factory=list)
    closed: str | None = None


class DeletionRow(_Row, table=True):
    """That a run is to be deleted, and later its tombstone. ``run`` is the run's name.

    Marked ``at``, by ``user``. From ``gone_after`` on a sweep removes it. ``begun`` is when that
    began, from where nothing is restored, and ``gone`` when it was done. ``why`` says what kept it.

    ``restored`` is when the mark was taken back. Nothing is deleted then, and no retention marks
    the run again. ``attested``: its model and evidence stay, and its checkpoints go. ``digests``
    name what was there. It refers to no row: a rebuild drops those of runs that storage has no
    longer.
    """

    run: str = Field(primary_key=True)
    experiment: str = Field(index=True)
    project: str = Field(index=True)
    storage: str
    folder: str
    at: str
    user: str
    gone_after: str = Field(index=True)
    restored: str | None = None
    begun: str | None = None
    gone: str | None = None
    why: str | None = None
    attested: bool = False
    bytes: int = Field(default=0, sa_type=BigInteger)
    digests: Json = Field(sa_type=JSON)


class StoreSecret(SQLModel, table=True):
    """The fingerprint of the secret that confidential records are keyed with. At most one row."""

    fingerprint: str = Field(primary_key=True)


class AuditEntry(SQLModel, table=True):
    """Who read or changed what. Entries are added, never changed."""

    __tablename__ = "audit"

    number: int | None = Field(default=None, primary_key=True)
    at: str = Field(index=True)
    user: str = Field(index=True)
    token: str | None = None
    action: str
    subject: str = Field(index=True)
    outcome: str
    detail: Json = Field(sa_type=JSON)


TABLES = SQLModel.metadata
"""The metadata that migrations are compared with."""
