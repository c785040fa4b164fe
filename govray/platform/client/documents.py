"""What a service answers: a class for each document.

Written by ``python docs/build_client.py``: do not edit.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import Field

from govray.platform.client.answered import Answered

CaseState: TypeAlias = Literal["RECEIVED", "SEARCHED", "ANSWERED", "DECIDED", "CLOSED"]
DeliveryState: TypeAlias = Literal["PENDING", "DELIVERED", "DEAD"]
ExperimentState: TypeAlias = Literal[
    "ACTIVE",
    "PAUSED",
    "STOPPING_PAUSED",
    "STOPPING_COMPLETED",
    "STOPPING_CANCELED",
    "STOPPING_ERROR",
    "COMPLETED",
    "CANCELED",
    "ERROR",
    "DELETED",
]
SubmissionState: TypeAlias = Literal[
    "QUEUED",
    "RUNNING",
    "PREEMPTING",
    "STOPPING",
    "KILLING",
    "COMPLETED",
    "STOPPED",
    "KILLED",
    "ERROR",
]
TrialState: TypeAlias = Literal[
    "ACTIVE", "STOPPING", "PAUSED", "INTERRUPTED", "COMPLETED", "CANCELED", "ERROR", "DELETED"
]


class Ancestor(Answered):
    """A run that the steps before ``step`` come from, those of its own ancestors included.

    ``size`` and ``root`` are the tree head of the ledger's lines of these steps.
    """

    run: str
    step: int
    size: str
    root: str


class Archive(Answered):
    """An archive that is there. Submit with its digest as `archive`."""

    digest: str
    bytes: str
    """Of the archive."""


class AttestationItem(Answered):
    """An attestation in a listing.

    A supplier gets ``digest``, ``name`` and ``public`` of a model that used its corpora; the
    rest is for those who may read the whole attestation.
    """

    digest: str
    name: str
    public: bool
    run: str | None = None
    signer: str | None = None
    policy: str | None = None
    trust_root: str | None = Field(default=None, alias="trustRoot")
    assurance: str | None = None
    started: str | None = None
    finished: str | None = None
    revoked: str | None = None
    """Since when it is revoked, by the lists that the service has."""


class AuditAnswer(Answered):
    """One audit. ``document`` is the signed predicate, whole or for the caller's corpora."""

    digest: str
    signer: str
    made: str
    weights: str
    """Digest of the weights that were scored."""
    document: dict[str, Any]


class Binding(Answered):
    """A role that somebody has in some place."""

    id: str
    subject_kind: Literal["user", "group"] = Field(alias="subjectKind")
    subject: str
    role: str
    scope: Literal["organisation", "workspace", "project", "model", "case"]
    place: str
    """The name of the workspace, project or model, the number of a case; else empty."""
    supplier: str | None = None
    """The authority that a supplier is."""
    until: str | None = None
    """When it ends by itself."""
    made: str
    user: str
    """Who gave it."""


class CaseItem(Answered):
    """A case of the list."""

    id: str
    """Its number."""
    state: CaseState
    model: str | None
    """None: all public models."""
    contact: str
    requester: str
    """The user that asked; `public` without a token."""
    received: str
    decision: str | None


class CaseStanding(Answered):
    """How a case stands, as its requester sees it."""

    case: str
    """Its number."""
    state: CaseState
    model: str | None
    """None: all public models."""
    received: str
    answered: str | None
    """When it was answered; the answer is signed."""
    decision: Literal["removed", "revoked", "refused", "nothing_found"] | None
    reason: str | None
    decided: str | None
    links: list[LinkedVersion]
    closed: str | None
    """From then on what was asked about is no longer kept."""


class Change(Answered):
    """What happened to a version. `before` and `after` are stages."""

    at: str
    user: str
    action: str
    before: str | None
    after: str | None
    gates: str | None
    """Digest of the gates that it passed."""


class ChangeAnswer(Answered):
    """A class that two policies treat differently."""

    credential_class: dict[str, str] = Field(alias="credentialClass")
    widens: bool
    gains: list[str]
    losses: list[str]
    before: OutcomeAnswer
    after: OutcomeAnswer


class CheckAnswer(Answered):
    """What an envelope alone shows. The whole check needs the model folder: `govray verify`."""

    outcome: Literal["failed", "partlyChecked", "notChecked"]
    meaning: str
    attestation: str | None = None
    run: str | None = None
    signer: str | None = None
    trust_root: str | None = Field(default=None, alias="trustRoot")
    """Digest of the root it is under."""
    indexed: bool
    """Whether this service has the attestation, in a place that you may read. It verified the
    whole model folder then; that does not say what your copy holds.
    """
    at: str
    steps: list[StepAnswer]


class Checkpoint(Answered):
    """A commit of a trial that is whole, or was."""

    step: int
    state: Literal["COMPLETED", "DELETED"]
    digest: str | None = None
    bytes: str
    at: str | None = None


class CheckpointPin(Answered):
    """A checkpoint that stays, and why."""

    step: int
    reason: str | None
    """null: nothing pins it."""


class CheckpointPins(Answered):
    """The checkpoints of a trial that stay, by step."""

    items: list[CheckpointPin]


class ConsistencyProof(Answered):
    """That the ledger of ``first`` leaves begins that of ``second``: RFC 9162 section 2.1.4."""

    first: str
    first_root: str = Field(alias="firstRoot")
    second: str
    second_root: str = Field(alias="secondRoot")
    path: list[str]
    checkpoint: str


class CorpusAnswer(Answered):
    """A corpus with its credentials and the models that used it, the newest first."""

    name: str
    supplier: str
    """The authority that issued its credential."""
    sensitivity: str
    confidential: bool
    """Its records are indexed by keyed hash."""
    credentials: list[CredentialItem]
    uses: list[ModelUse]
    more: bool
    """Whether there are more uses than the 200 listed."""


class CorpusItem(Answered):
    """A corpus, as its credentials state it."""

    name: str
    supplier: str
    """The authority that issued its credential."""
    sensitivity: str
    confidential: bool
    """Its records are indexed by keyed hash."""


class CorpusLineage(Answered):
    """What one run recorded of one corpus.

    Attributes:
        credential: Digest of the credential under which it was admitted.
        license, license_category, jurisdiction, sensitivity, use: The credential class, which
            is
            what the policy saw.
        rules: The policy's rules that matched it.
        profile: What they gave it.
        excluded: The plan names it, but reads none of it.
        records: Distinct records that were read.
        tokens: Loss targets that were read.
        steps: In how many steps. These three are of the layer group that most of it updated;
            only
            gates and phases let groups differ.
        replayed_by: Who replayed the run without it and got the same bytes: ``NAME itself`` for
            the operator that signed, a witness's name for a second party.
        cells: One for each of the document's groups, in their order.
    """

    corpus: str
    credential: str
    license: str
    license_category: Literal[
        "public_domain", "permissive", "copyleft_limited", "copyleft", "commercial", "unknown"
    ] = Field(alias="licenseCategory")
    jurisdiction: str
    sensitivity: Literal["public", "internal", "confidential", "restricted"]
    use: Literal["commercial", "non_commercial", "academic_only", "unspecified"]
    rules: list[str]
    profile: str
    excluded: bool
    records: str
    tokens: str
    steps: str
    replayed_by: list[str] = Field(alias="replayedBy")
    cells: list[LineageCell]


class CredentialItem(Answered):
    """A signed credential of a corpus."""

    digest: str
    license: str
    category: str
    jurisdiction: str
    sensitivity: str
    valid_from: str = Field(alias="validFrom")
    valid_until: str = Field(alias="validUntil")
    records: str
    """How many, a decimal string."""


class Decision(Answered):
    """A stop, restart, gate, flag, rollback or refusal."""

    source: str
    number: int
    kind: str
    at: str | None = None
    step: int | None = None
    corpus: str | None = None
    reason: str
    evidence: dict[str, Any]


class DiffAnswer(Answered):
    """The classes that two policies treat differently, one for each combination of values."""

    old: str
    new: str
    changes: list[ChangeAnswer]
    more: bool
    """Whether there are more than the 500 listed."""


class Entry(Answered):
    """Who did what to what."""

    number: str
    at: str
    user: str
    token: str | None = None
    action: str
    subject: str
    outcome: Literal["done", "refused"]
    detail: dict[str, Any]


class Experiment(Answered):
    """One experiment file, or one search, and what became of it."""

    id: str
    name: str
    kind: str
    """`run` or `search`."""
    state: ExperimentState
    project: str
    user: str
    storage: str
    config: dict[str, Any]
    started: str
    finished: str | None = None
    why: str | None = None
    """Why it stopped, if it did not complete."""


class ExperimentCheck(Answered):
    """What an experiment would take at most, and which policy applies, as far as can be said."""

    kind: str
    name: str
    project: str
    pool: str
    priority: int
    workers: int
    """Of one run; of an elastic one the most."""
    slots: int
    """Workers at once, of all trials together."""
    gpus: float
    """Devices at once."""
    trials: int
    """1 without a search."""
    steps: str | None = None
    """Of all trials together, if none ends early; null: the run ends with its data."""
    rows_per_step: float = Field(alias="rowsPerStep")
    """Of one trial, one route stream a profile."""
    tokens: str | None = None
    """Of all trials together; null for images."""
    worker_hours: float | None = Field(default=None, alias="workerHours")
    """null: not known."""
    policy_place: str = Field(alias="policyPlace")
    """Where the file says that the policy lies."""
    policy: PolicyKnown | None = None
    """null: no run of this name read it there."""
    unknown: list[str]
    """What cannot be said yet, and why."""
    file: str
    """The file with the overrides."""


class ExperimentTags(Answered):
    """The tags of one experiment."""

    tags: list[str]
    """All of them, at most 20. A tag is up to 64 letters, digits, . _ -."""


class ExplanationAnswer(Answered):
    """Which rules decide what, for one class in one model."""

    policy: str
    profile: str
    rules: list[str]
    quarantined_by: str | None = Field(alias="quarantinedBy")
    adapter: str | None
    rank: int | None
    groups: list[GroupAnswer]
    """Of a profile with phases, the first."""
    phases: list[PhaseAnswer]
    """The later ones."""
    memorization: str | None


class Filled(Answered):
    """An experiment file, made of a template and overrides."""

    text: str


class Group(Answered):
    """A group of this store."""

    name: str
    members: int


class GroupAnswer(Answered):
    """Why a layer group has its weight: the rules that give it the smallest."""

    group: str
    weight: float
    rules: list[str]


class GroupLineage(Answered):
    """A layer group and what it began with.

    Attributes:
        kind: ``base``, or ``adapter``: removable, with its own file.
        parameters: FQNs of a base group's parameters, tensor names of an adapter's.
        pretrained: What the weights that the run started from brought: names of corpora, or
            ``unknown``. Empty where training began from nothing.
        transitive: What reached the group by any path from outside this run: the ``unknown`` of
            a
            start, or corpora of an attested one.
        removed: When the adapter's files were deleted; absent if they were not.
    """

    group: str
    kind: Literal["base", "adapter"]
    parameters: list[str]
    pretrained: list[str]
    transitive: list[str]
    removed: str | None = None


class Happened(Answered):
    """Something that happened, as it was noticed."""

    id: str
    kind: str
    subject: str
    """The trial, experiment, submission, corpus or attestation."""
    at: str
    noticed: str
    project: str | None = None
    data: dict[str, Any]


class Health(Answered):
    """The service runs and its store answers.

    Attributes:
        status: ``incomplete`` where something is missing, without which answers would be wrong.
            What depends on it is refused meanwhile.
        missing: What that is.
    """

    status: Literal["ok", "incomplete"]
    version: str
    missing: list[str] = Field(default_factory=list)
    revocations: Literal["current", "notAsked", "couldNotCheck"]
    """`couldNotCheck`: a trust root asks for a revocation list, or for a newer one, that this
    service does not have. Or a list does not verify. Every answer then has the header `Govray-
    Revocations: could-not-check`. `notAsked`: no root asks and no list is given, so nothing is
    known of revocations.
    """


class InclusionProof(Answered):
    """That a leaf stands in the ledger: RFC 9162 section 2.1.3.

    Recompute the root of ``size`` from ``leafHash``, ``index`` and ``path``, and compare it
    with that of the signed checkpoint. A smaller size also needs a consistency proof.
    """

    index: str
    size: str
    leaf_hash: str = Field(alias="leafHash")
    """Base64 of 32 bytes."""
    path: list[str]
    """From the leaf upwards, base64 of 32 bytes each."""
    checkpoint: str


class LayerUse(Answered):
    """The corpus in one layer group of a model. See `/lineage` for the words."""

    group: str
    tokens: str
    gradient_norm_share: float | None = Field(default=None, alias="gradientNormShare")
    direct: bool
    transitive: bool
    level: int | None = None


class LedgerAnswer(Answered):
    """The signed head of a ledger. Check ``checkpoint`` with the operator's public key."""

    run: str
    origin: str
    size: str
    """Leaves, a decimal string."""
    root: str
    checkpoint: str
    """The signed note: c2sp.org/tlog-checkpoint."""
    tiles: bool
    """Whether the tiles are on storage, so that proofs can be had."""


class LedgerHead(Answered):
    """The tree head that ``governance/ledger.checkpoint`` signs."""

    origin: str
    size: str
    root: str


class Line(Answered):
    """A line, and the byte that it begins at."""

    at: str
    text: str


class Lineage(Answered):
    """Which data trained which layers of one model, as one attestation states it.

    Attributes:
        scope: ``whole``; ``corpora``, only the rows that the caller may see; ``group``, one
            layer
            group of all rows; ``corporaGroup``, both.
        attestation: Digest of the attestation's statement, from which all else follows.
        selection_taint: Searches and early stopping, by numbers which depend on corpora.
        removals: Adapters whose files were deleted, and when.
        quarantine: What was refused, and why.
    """

    schema_version: Literal["v1"] = Field(default="v1", alias="schemaVersion")
    scope: Literal["whole", "corpora", "group", "corporaGroup"]
    attestation: str
    run: LineageRun
    policy: Reference
    ledger: LedgerHead
    assurance_level: Literal["selfAttested", "witnessed", "replayChecked"] = Field(
        alias="assuranceLevel"
    )
    groups: list[GroupLineage]
    corpora: list[CorpusLineage]
    selection_taint: list[Selection] = Field(alias="selectionTaint")
    removals: list[Removal]
    quarantine: list[Quarantined]


class LineageCell(Answered):
    """One corpus in one layer group. See the module for the words.

    Attributes:
        tokens: Loss targets whose gradient updated the group, as the ledger counted them.
        weight: The route's, in (0, 1]; absent where the route does not reach the group. Of a
            route with phases, the largest.
        gradient_norm_share: The corpus's part of the gradients measured of the group, in [0,
            1];
            absent where none was measured.
        closed: Half-open ranges of steps whose phase does not reach the group, where others do.
    """

    group: str
    tokens: str
    weight: float | None = None
    closed: list[list[Any]] | None = None
    gradient_norm_share: float | None = Field(default=None, alias="gradientNormShare")
    direct: bool
    transitive: bool
    level: int | None = None


class LineageRun(Answered):
    """The run. What is optional is as in the attestation."""

    id: str
    name: str
    started: str
    finished: str
    initial_weights: dict[str, str] | None = Field(default=None, alias="initialWeights")
    ancestry: list[Ancestor] | None = None
    submission: Submission | None = None


class LinkedVersion(Answered):
    """A version whose attestation shows what was decided; the service checked that it does."""

    model: str
    version: str
    attestation: str


class Log(Answered):
    """A log by its name: `driver-N`, or `rank-R-A` of rank R in attempt A."""

    name: str
    bytes: str


class Logs(Answered):
    """The logs of a trial: drivers first, then by attempt and rank."""

    items: list[Log]


class MadeToken(Answered):
    """A token that was made. ``token`` is told here and never again."""

    id: str
    user: str
    name: str
    """What it is for."""
    scopes: list[str]
    created: str
    expires: str
    revoked: str | None = None
    token: str


class MadeWebhook(Answered):
    """A new webhook, with its secret."""

    id: str
    url: str
    kinds: list[str]
    """What it is told of."""
    project: str | None = None
    """Only what belongs to this project."""
    created: str
    """It is told of what happens from then on."""
    user: str
    secret: str
    """Signs what is sent. It is not shown again."""


class Member(Answered):
    """A user in a group."""

    user: str


class MemorizationAnswer(Answered):
    """What is stated about a model's memory of its data; each statement is its signer's.

    ``monitored`` says whether the policy asked for a monitor. Without findings or audits
    nothing is stated: that is not the same as nothing memorized.
    """

    attestation: str
    monitored: bool
    findings: dict[str, Any] | None = None
    """Entropy profile and incidents, as the attestation has them."""
    audits: list[AuditAnswer]
    """The newest first."""


class Metric(Answered):
    """One number of one step."""

    group: str
    name: str
    step: int
    attempt: int
    value: float | None = None
    """null: the number was not finite."""
    archived: bool
    """A restart or rollback ran the step again."""
    at: str | None = None


class Model(Answered):
    """A model, as staff see it."""

    name: str
    description: str
    labels: dict[str, str]
    created: str
    user: str
    production: str | None
    """The version in production."""


class ModelName(Answered):
    """A model, as suppliers and the public see it."""

    name: str


class ModelUse(Answered):
    """What one attested run recorded of the corpus."""

    attestation: str
    name: str
    versions: list[VersionName]
    credential: str
    records: str
    rows: str
    tokens: str
    steps: str
    first_step: int | None = Field(alias="firstStep")
    last_step: int | None = Field(alias="lastStep")
    layers: list[LayerUse]
    """The base groups in name order, then adapters."""


class OpenedTask(Answered):
    """Where to look at a task."""

    url: str
    """Good once."""
    seconds: int
    """How long it is good."""


class OutcomeAnswer(Answered):
    """What a policy means for one class."""

    status: Literal["trains", "quarantined", "refused"]
    label: str
    weights: dict[str, float]
    """Of a profile with phases, the first."""
    phases: list[PhaseWeights]
    """The later ones."""
    rank: int | None
    memorization: str | None


class Part(Answered):
    """Lines of a log that follow one another, or that were searched for."""

    name: str
    size: str
    """Bytes that the log has."""
    begin: str
    """The byte that this part begins at."""
    next: str
    """Give it as `from`, for the next part."""
    lines: list[Line]


class PhaseAnswer(Answered):
    """Why layer groups have other weights from a step on."""

    from_step: int = Field(alias="fromStep")
    groups: list[GroupAnswer]


class PhaseWeights(Answered):
    """The weights of a class from a step on."""

    from_step: int = Field(alias="fromStep")
    weights: dict[str, float]


class PolicyItem(Answered):
    """A signed depth policy."""

    digest: str
    name: str
    version: int
    signer: str


class PolicyKnown(Answered):
    """The policy at the place that the file names, as the latest run of this name read it."""

    name: str
    version: int
    digest: str


class Probe(Answered):
    """The answer to a probe; anything but 200 is a no."""

    status: Literal["ok"] = "ok"


class Project(Answered):
    """A project, and the roles that you have in it."""

    name: str
    description: str
    archived: bool
    """It takes no projects any more."""
    created: str
    user: str
    """Who made it."""
    workspace: str
    roles: list[str]


class ProjectSettings(Answered):
    """What an administrator sets for a project. An empty one allows everything."""

    pools: list[str] | None = None
    """pools that may be used; all of them"""
    default_pool: str = "default"
    """pool of a submission that names none"""
    default_priority: int = 0
    """priority of one that says none"""
    max_priority: int | None = None
    """highest priority that may be asked"""
    share: float = 1.0
    """weight beside other projects, fair share"""
    max_slots: int | None = None
    """slots held at the same time, all together"""
    max_slots_per_submission: int | None = None
    """slots of one submission"""
    depth_policies: list[str] | None = None
    """depth policies that may be used, by digest or by name; all of them"""
    tasks: list[Literal["notebook", "shell", "tensorboard", "command", "inference"]] | None = None
    """kinds of tasks that may be submitted; all of them, but with depth_policies tensorboard and
    inference alone
    """
    memorization_tau: float | None = None
    """the laxest limit of memorization that a search may declare"""
    defaults: dict[str, Any] | None = None
    """values of an experiment that lie below the file's own"""
    fixed: dict[str, Any] | None = None
    """values that no file may have otherwise"""


class Promoted(Answered):
    """A change of stage that was made."""

    model: str
    version: str
    before: str
    after: str
    replaced: str | None
    """The version that was in production until then."""


class Quarantined(Answered):
    """Records that were refused, with the rule (or check) that refused them and why."""

    corpus: str
    rule: str
    reason: str
    records: int


class QueueEntry(Answered):
    """An entry of the queue."""

    id: str
    kind: str
    """`train` or `tune`, or another task."""
    name: str
    project: str
    user: str
    state: SubmissionState
    pool: str
    priority: int
    slots: int
    """Workers that it holds while it runs."""
    position: int | None = None
    """Its place in its pool's queue by priority and time, from 1, while it waits. A pool that is
    shared by project may take another first.
    """
    policy: str | None = None
    """Digest of the depth policy that it has to have."""
    archive: str | None = None
    """Digest of its working directory."""
    forked_from: str | None = Field(default=None, alias="forkedFrom")
    """The submission that it is a fork of."""
    run: str | None = None
    """The run or search that it became."""
    job: str | None = None
    """The cluster's name of its last job."""
    attempt: int
    """Jobs so far."""
    failures: int
    """Jobs that failed since its last progress."""
    submitted: str
    started: str | None = None
    finished: str | None = None
    why: str | None = None
    """Why it is in its state."""
    archived: bool
    tags: list[str]
    config: str | None
    """The experiment file, as it was sent or with its overrides. A task's file is for who
    submitted it, and for engineers and admins of its project; null for others.
    """


class ReceivedCase(Answered):
    """A case that was received. The key is shown here, and never again."""

    case: str
    """Its number."""
    key: str
    """Shows the case's standing and its answer to whoever has it."""
    received: str


class RecordAnswer(Answered):
    """Where a record stands in the recorded data that you may read."""

    sha256: str
    found: bool
    meaning: str
    limits: str
    sightings: list[Sighting]
    closed: list[str] = Field(default_factory=list)
    """Corpora that could not be searched: the store lacks their secrets, or the records of a model
    that was trained on them.
    """
    more: bool
    """Whether there are more than the 200 listed."""


class Reference(Answered):
    """Another signed document, by name, version and digest."""

    name: str
    version: int
    digest: str


class Removal(Answered):
    """An adapter whose files were deleted from the model folder, at the signer's time."""

    adapter: str
    removed: str


class Removed(Answered):
    """A webhook that is no more."""

    id: str


class Reverified(Answered):
    """What verifying a model again gave, for as long as it gave that."""

    outcome: Literal["verified", "failed", "could not check"]
    why: str | None = None
    since: str
    checked: str
    """When it was verified last."""


class Selection(Answered):
    """A search that a run was a trial of, or the early stopping that it was under.

    Attributes:
        search: The search's name; absent of early stopping.
        metric: What trials were compared by, or a run with itself.
        statistic: What limited memorization, if anything did.
        corpora: Whose data these numbers depend on, sorted.
        validation: Corpora that the metric was measured on, if no step trained on them, with
            the
            digests of their credentials.
        ended: The steps of a run that early stopping ended before its plan did.
    """

    search: str | None = None
    metric: str
    statistic: str | None = None
    corpora: list[str]
    validation: dict[str, Any] | None = None
    ended: int | None = None


class SentEvent(Answered):
    """One event for one webhook."""

    webhook: str
    alert: str
    """The event's id."""
    state: DeliveryState
    tries: int
    due: str
    """When it is tried next, if it is pending."""
    status: int | None = None
    """The receiver's last answer."""
    why: str | None = None
    """Why there was none."""
    delivered: str | None = None


class Settings(Answered):
    """A project's config policy: limits, defaults and fixed values. `{}` allows everything."""

    settings: ProjectSettings


class Sighting(Answered):
    """One place where the record stands in one attested run."""

    corpus: str
    attestation: str
    name: str
    """Of the run's model."""
    record: str
    """Index in the corpus, in Merkle order."""
    planted: bool
    """A canary of the operator, no record of the supplier."""
    split: Literal["train", "reserve", "empty"]
    use: str
    """What became of it, for people."""
    tokens: str
    """Its own tokens in the rows that were read."""
    step_count: int = Field(alias="stepCount")
    steps: list[int]
    """The first of them, ascending."""
    groups: list[str]
    """Layer groups that these steps' gradients updated."""
    proofs: list[StepProof]
    no_proof: str | None = Field(default=None, alias="noProof")
    """Why there are fewer proofs than asked."""


class SignIn(Answered):
    """The identity provider that people sign in to, if there is one."""

    issuer: str | None = None
    """null: tokens are made by an admin."""
    client_id: str | None = Field(default=None, alias="clientId")
    """The client to sign in as."""
    scopes: list[str]
    """What to ask the provider for."""


class StaffCase(Answered):
    """A case as staff see it, with the names of corpora."""

    id: str
    """Its number."""
    state: CaseState
    model: str | None
    """None: all public models."""
    contact: str
    requester: str
    """The user that asked; `public` without a token."""
    received: str
    decision: str | None
    sha256: str | None
    """Of what was asked about, if that is bytes."""
    size: int | None
    domains: list[str]
    excerpt: str | None
    """The first 2000 characters; none where it is no text, or closed."""
    searched: str | None
    found: dict[str, Any]
    """What the last search found; `{}` before it."""
    released: list[str]
    """Corpora that the answer names."""
    answered: str | None
    reason: str | None
    decided: str | None
    decided_by: str | None = Field(alias="decidedBy")
    links: list[LinkedVersion]
    missing: list[str]
    """Models that something was found in, for which no version is linked."""
    closed: str | None


class StepAnswer(Answered):
    """One of the verifier's numbered steps."""

    number: int
    name: str
    status: Literal["passed", "failed", "notChecked"]
    why: str | None = None


class StepProof(Answered):
    """The leaf of a step that read the record, and its proof.

    ``leaf`` is the leaf's JSON, whose hash with a zero byte before it is ``leafHash``. It names
    all corpora of the step, so it is for staff.
    """

    index: str
    size: str
    leaf_hash: str = Field(alias="leafHash")
    """Base64 of 32 bytes."""
    path: list[str]
    """From the leaf upwards, base64 of 32 bytes each."""
    checkpoint: str
    run: str
    branch: int
    step: int
    leaf: str | None = None


class SubjectItem(Answered):
    """A file, and the attestation that it is in."""

    attestation: str
    name: str
    """The file."""
    run: str
    public: bool


class Subjects(Answered):
    """The attestations about one file. None: nothing here that you may read is about it."""

    sha256: str
    items: list[SubjectItem]


class Submission(Answered):
    """One submission, which becomes one run or one search and no other.

    Attributes:
        id: Its own; no other submission has it.
        user: Who submitted it.
        project: What it counts for.
        policy: Digest of the depth policy that it was submitted under, if that was decided
            then.
        submitted: When.
        archive: Digest of the working directory that its job gets, if it was archived.
    """

    id: str
    user: str
    project: str
    policy: str | None = None
    submitted: str
    archive: str | None = None


class SubmissionItem(Answered):
    """An entry of the queue, without its file."""

    id: str
    kind: str
    """`train` or `tune`, or another task."""
    name: str
    project: str
    user: str
    state: SubmissionState
    pool: str
    priority: int
    slots: int
    """Workers that it holds while it runs."""
    position: int | None = None
    """Its place in its pool's queue by priority and time, from 1, while it waits. A pool that is
    shared by project may take another first.
    """
    policy: str | None = None
    """Digest of the depth policy that it has to have."""
    archive: str | None = None
    """Digest of its working directory."""
    forked_from: str | None = Field(default=None, alias="forkedFrom")
    """The submission that it is a fork of."""
    run: str | None = None
    """The run or search that it became."""
    job: str | None = None
    """The cluster's name of its last job."""
    attempt: int
    """Jobs so far."""
    failures: int
    """Jobs that failed since its last progress."""
    submitted: str
    started: str | None = None
    finished: str | None = None
    why: str | None = None
    """Why it is in its state."""
    archived: bool
    tags: list[str]


class Task(Answered):
    """A task in the queue."""

    id: str
    kind: Literal["notebook", "shell", "tensorboard", "command", "inference"]
    name: str
    project: str
    user: str
    state: SubmissionState
    pool: str
    submitted: str
    started: str | None
    finished: str | None
    why: str | None
    shown: bool
    """Whether it can be opened: it answers over HTTP while it runs."""


class Template(Answered):
    """A template without its text."""

    project: str
    name: str
    changed: str
    user: str
    """Who changed it last."""


class TemplateText(Answered):
    """A template."""

    project: str
    name: str
    changed: str
    user: str
    """Who changed it last."""
    text: str
    """The experiment file."""


class TokenItem(Answered):
    """A token without its secret, which nobody has but its bearer."""

    id: str
    user: str
    name: str
    """What it is for."""
    scopes: list[str]
    created: str
    expires: str
    revoked: str | None = None


class Trial(Answered):
    """One run."""

    id: str
    experiment: str
    state: TrialState
    hyperparameters: dict[str, Any]
    step: int
    max_steps: int = Field(alias="maxSteps")
    loss: float | None = None
    objective: float | None = None
    world_size: int | None = Field(default=None, alias="worldSize")
    attempts: int
    started: str
    finished: str | None = None
    why: str | None = None
    replay_of: str | None = Field(default=None, alias="replayOf")
    """The trial that this one replayed."""
    code: str
    policy: str
    manifest: str
    worker_seconds: float = Field(alias="workerSeconds")
    accelerator_seconds: float = Field(alias="acceleratorSeconds")


class TrustRootItem(Answered):
    """A trust root that something here was verified against. Get yours from its owner."""

    digest: str
    name: str
    version: int


class Usage(Answered):
    """Usage by project, user or workspace, by name."""

    by: Literal["project", "user", "workspace"]
    items: list[Used]


class Used(Answered):
    """What one project, user or workspace used."""

    name: str
    submissions: int
    """Entries of the queue that were made."""
    trials: int
    worker_hours: float = Field(alias="workerHours")
    accelerator_hours: float = Field(alias="acceleratorHours")
    """Hours of what Ray gave a worker as a GPU."""
    attested: int
    """Attestations in the index of these trials' runs."""


class User(Answered):
    """Somebody with tokens of this store."""

    name: str
    role: str
    """In the whole organisation."""
    supplier: str | None = None
    disabled: bool
    created: str


class Version(Answered):
    """A version, as staff see it."""

    model: str
    version: str
    attestation: str
    """Digest of the attestation that it was made of."""
    stage: Literal["none", "staging", "production", "archived"]
    labels: dict[str, str]
    metrics: dict[str, float]
    notes: str
    created: str
    user: str
    public: bool
    """Anyone may read its attestation."""


class VersionName(Answered):
    """A version of a model in the registry."""

    model: str
    version: str


class VersionReference(Answered):
    """A version, as suppliers and the public see it."""

    model: str
    version: str
    attestation: str
    """Digest of the attestation that it was made of."""


class VersionWithHistory(Answered):
    """A version and everything that happened to it, oldest first."""

    model: str
    version: str
    attestation: str
    """Digest of the attestation that it was made of."""
    stage: Literal["none", "staging", "production", "archived"]
    labels: dict[str, str]
    metrics: dict[str, float]
    notes: str
    created: str
    user: str
    public: bool
    """Anyone may read its attestation."""
    history: list[Change]
    reverified: list[Reverified]
    """What verifying it again gave, the newest first; `govray alerts run` does so."""


class Webhook(Answered):
    """An address that is told of events."""

    id: str
    url: str
    kinds: list[str]
    """What it is told of."""
    project: str | None = None
    """Only what belongs to this project."""
    created: str
    """It is told of what happens from then on."""
    user: str


class Workspace(Answered):
    """A part of the organisation."""

    name: str
    description: str
    archived: bool
    """It takes no projects any more."""
    created: str
    user: str
    """Who made it."""
