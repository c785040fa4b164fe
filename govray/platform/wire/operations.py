"""What a service can be asked, by noun: ``client.experiments.submit(…)``, ``client.models.list()``.

Each operation stands here once: method, path, and by its annotation what its answer is. One that
lists things says too by which verb of the command. The client's methods and those verbs
(`govray.cli.listing_verbs`) come from these rows. Nothing here needs pydantic, so that the command
starts quickly.

Fields of the path come first, in their order. All others are keywords in snake case: the query of a
GET, the body of what changes something. The service checks them. ``body=`` is an object that is
sent as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from govray.platform.wire.answers import (
        Archive,
        AttestationItem,
        Checkpoint,
        CheckpointPin,
        CheckpointPins,
        Deletion,
        Deletions,
        Experiment,
        ExperimentCheck,
        ExperimentItem,
        Files,
        FoundVersion,
        Metric,
        Model,
        Promoted,
        Run,
        Task,
        Version,
    )

T = TypeVar("T")
Json = dict[str, Any]
"""An object as the reference of the HTTP API has it."""
SIGNED = "application/vnd.dsse.envelope.v1+json"


class Namespace:
    """The operations on one kind of thing, sent by ``client.call``."""

    def __init__(self, client: Any) -> None:
        self._client = client


class Call(Generic[T]):
    """One operation of the service.

    Args:
        method: Of HTTP.
        path: With ``{fields}``; one called ``path`` may have slashes.
        kind: Of the body, where ``data=`` gives it as bytes.
        listed: The verb that lists the answer's ``items``.
    """

    owner: type
    name: str

    def __init__(
        self, method: str, path: str, *, kind: str = "", listed: Listed | None = None
    ) -> None:
        self.method, self.path, self.kind, self.listed = method, path, kind, listed
        self.fields = re.findall(r"\{(\w+)\}", path)

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name

    def __get__(self, namespace: Namespace, kind: type) -> Callable[..., T]:
        return partial(namespace._client.call, self)


class Pages(Call[T]):
    """The items of all pages, each page asked for when it is needed."""

    def __init__(self, path: str, listed: Listed | None = None) -> None:
        super().__init__("GET", path, listed=listed)

    def __get__(  # type: ignore[override]  # an iterator of what the base answers
        self, namespace: Namespace, kind: type
    ) -> Callable[..., Iterator[T]]:
        return partial(namespace._client.call, self)


@dataclass(frozen=True)
class Filter:
    """An option of a verb that lists.

    Args:
        name: Of the option, and of the query's field if ``field`` names no other.
        word: What stands for its value; none: it has no value, and sends ``sends``.
        help: What it does.
        time: Whether its value is a time.
    """

    name: str
    word: str
    help: str
    field: str = ""
    sends: object = True
    time: bool = False


@dataclass(frozen=True)
class Listed:
    """How the command lists what an operation answers.

    Args:
        verb: Its family and name, ``project ls``; one word stands in no family.
        help: What it does, a sentence.
        columns: Headings of the table; behind a colon the field, or a text with ``{fields}``, where
            the heading is not the field's name.
        none: Said in the place of an empty table.
        options: Its options, in their order.
        limit: The most rows without ``--limit``; None: all, and there is no such option.
        right: Headings of numbers.
        blank: Stands where an item has nothing to say.
        cells: Heading → what an item has there, where ``columns`` cannot say it.
    """

    verb: str
    help: str
    columns: str
    none: str | None = None
    options: tuple[Filter, ...] = ()
    limit: int | None = None
    right: tuple[str, ...] = ()
    blank: str = "-"
    cells: Mapping[str, Callable[[Json], str]] = field(default_factory=dict)


USER = Filter("user", "NAME", "Show what this user did.")
PROJECT = Filter("project", "NAME", "List those of this project.")
SINCE = Filter("since", "TIME", "Show what is of this time or later, in UTC.", time=True)
BEFORE = Filter("before", "TIME", "Show what is from before this time, in UTC.", time=True)
SORT = Filter("sort", "COLUMN", "Sort by this field, such as name; -name: backwards.")
STATES = "QUEUED, RUNNING, PREEMPTING, STOPPING, KILLING, COMPLETED, STOPPED, KILLED or ERROR."


def _gone(row: Json) -> str:
    if row["restored"]:
        return "restored"
    return f"on {row['gone']}" if row["gone"] else f"after {row['goneAfter']}"


class Service(Namespace):
    """The service itself."""

    live: Call[Json] = Call("GET", "/v1/live")
    ready: Call[Json] = Call("GET", "/v1/ready")
    health: Call[Json] = Call("GET", "/v1/health")
    sign_in: Call[Json] = Call("GET", "/v1/sign-in")
    metrics: Call[str] = Call("GET", "/metrics")
    audit: Pages[Json] = Pages(
        "/v1/audit",
        Listed(
            "audit-log",
            "List entries of a service's audit log, the latest first.",
            "at, user, action, subject, outcome, detail",
            none="No entry that you may read is like that",
            options=(
                USER,
                Filter("action", "ACTION", "Show actions of this kind, such as token.make."),
                Filter("subject", "NAME", "Show what was done to this, such as a run's id."),
                Filter("refused", "", "Show only what was refused.", "outcome", sends="refused"),
                SINCE,
                BEFORE,
            ),
            limit=50,
        ),
    )
    usage: Pages[Json] = Pages("/v1/usage")
    usage_csv: Call[str] = Call("GET", "/v1/usage.csv")
    alerts: Pages[Json] = Pages("/v1/alerts")


class Experiments(Namespace):
    """What was submitted or started by hand, and where it stands."""

    check: Call[ExperimentCheck] = Call("POST", "/v1/experiments:check")
    submit: Call[Experiment] = Call("POST", "/v1/experiments")
    list: Pages[ExperimentItem] = Pages(
        "/v1/experiments",
        Listed(
            "experiments ls",
            "List experiments, the latest first.",
            "id, name, project, user, state, place: position, pool, priority, slots, "
            "tries: attempt, why",
            none="No experiment is like that. Submit one: govray --server URL train FILE",
            options=(
                Filter("state", "STATE", STATES),
                PROJECT,
                USER,
                Filter("tag", "WORD", "List those with this tag."),
                Filter("pool", "NAME", "List those in this pool."),
                Filter("archived", "", "List those that were archived."),
                SINCE,
                BEFORE,
                SORT,
            ),
            limit=50,
            right=("place", "priority", "slots", "tries"),
            blank="",
        ),
    )
    pools: Call[Json] = Call(
        "GET",
        "/v1/pools",
        listed=Listed(
            "queue pools",
            "List the pools of the queue, and the workers that each has room for.",
            "pool: name, slots, labels",
            none="Nobody works off the queue yet. The cluster's operator does by: "
            "govray queue run deploy/queue.yaml",
        ),
    )
    get: Call[Experiment] = Call("GET", "/v1/experiments/{experiment}")
    stop: Call[Experiment] = Call("POST", "/v1/experiments/{experiment}:stop")
    kill: Call[Experiment] = Call("POST", "/v1/experiments/{experiment}:kill")
    resume: Call[Experiment] = Call("POST", "/v1/experiments/{experiment}:resume")
    archive: Call[Experiment] = Call("POST", "/v1/experiments/{experiment}:archive")
    unarchive: Call[Experiment] = Call("POST", "/v1/experiments/{experiment}:unarchive")
    put_tags: Call[Json] = Call("PUT", "/v1/experiments/{experiment}/tags")
    delete: Call[Deletions] = Call("DELETE", "/v1/experiments/{experiment}")
    restore: Call[Deletions] = Call("POST", "/v1/experiments/{experiment}:restore")


class Runs(Namespace):
    """Runs, what they measured, and their checkpoints."""

    list: Pages[Run] = Pages(
        "/v1/runs",
        Listed(
            "runs ls",
            "List the runs that the service has indexed, the latest first.",
            "run: id, experiment, state, step: {step}/{maxSteps}, loss: {loss:.3f}, started",
            none="No run is like that. Submit one: govray --server URL train FILE",
            options=(
                Filter("experiment", "ID", "List those of this experiment."),
                Filter("state", "STATE", "List those in this state, such as COMPLETED."),
                SINCE,
                BEFORE,
                SORT,
            ),
            limit=50,
            right=("step", "loss"),
            blank="",
        ),
    )
    get: Call[Run] = Call("GET", "/v1/runs/{run}")
    metrics: Pages[Metric] = Pages(
        "/v1/runs/{run}/metrics",
        Listed(
            "runs metrics",
            "List what a run measured, by group, name and step; --json for programs.",
            "group, name, step, value: {value:g}",
            none="The service has no such number of the run",
            options=(
                Filter("name", "NAME", "Show this metric alone."),
                Filter("group", "GROUP", "Show this group alone, such as training."),
            ),
            right=("step", "value"),
            blank="not finite",
        ),
    )
    metrics_csv: Call[str] = Call("GET", "/v1/runs/{run}/metrics.csv")
    decisions: Pages[Json] = Pages("/v1/runs/{run}/decisions")
    checkpoints: Pages[Checkpoint] = Pages("/v1/runs/{run}/checkpoints")
    pins: Call[CheckpointPins] = Call("GET", "/v1/runs/{run}/pins")
    pin: Call[CheckpointPin] = Call("POST", "/v1/runs/{run}/checkpoints/{step}:pin")
    unpin: Call[CheckpointPin] = Call("POST", "/v1/runs/{run}/checkpoints/{step}:unpin")
    delete: Call[Deletion] = Call("DELETE", "/v1/runs/{run}")
    restore: Call[Deletion] = Call("POST", "/v1/runs/{run}:restore")
    deletions: Pages[Deletion] = Pages(
        "/v1/deletions",
        Listed(
            "runs deleted",
            "List runs that are marked to be deleted, and those that are gone.",
            "run, experiment, project, marked: at, by: user, gone: goneAfter, why",
            options=(PROJECT,),
            limit=50,
            blank="",
            cells={"gone": _gone},
        ),
    )
    deletion: Call[Deletion] = Call("GET", "/v1/deletions/{run}")
    logs: Call[Json] = Call("GET", "/v1/runs/{run}/logs")
    log: Call[Json] = Call("GET", "/v1/runs/{run}/logs/{name}")
    log_text: Call[bytes] = Call("GET", "/v1/runs/{run}/logs/{name}/text")
    checkpoint_files: Call[Files] = Call("GET", "/v1/runs/{run}/checkpoints/{step}/files")
    checkpoint_file: Call[bytes] = Call("GET", "/v1/runs/{run}/checkpoints/{step}/files/{path}")


class Archives(Namespace):
    """Working directories on the cluster's storage, by digest."""

    get: Call[Archive] = Call("GET", "/v1/archives/{digest}")
    put: Call[Archive] = Call("PUT", "/v1/archives/{digest}", kind="application/zip")


class Models(Namespace):
    """The registry."""

    list: Pages[Model] = Pages("/v1/models")
    get: Call[Model] = Call("GET", "/v1/models/{model}")
    versions: Pages[Version] = Pages("/v1/models/{model}/versions")
    find: Pages[FoundVersion] = Pages("/v1/versions")
    register: Call[Version] = Call("POST", "/v1/models/{model}/versions")
    version: Call[Version] = Call("GET", "/v1/models/{model}/versions/{version}")
    annotate: Call[Version] = Call("PATCH", "/v1/models/{model}/versions/{version}")
    promote: Call[Promoted] = Call("POST", "/v1/models/{model}/versions/{version}:promote")
    lineage: Call[Json] = Call("GET", "/v1/models/{model}/versions/{version}/lineage")
    layer: Call[Json] = Call("GET", "/v1/models/{model}/versions/{version}/layers/{group}")
    memorization: Call[Json] = Call("GET", "/v1/models/{model}/versions/{version}/memorization")


class Attestations(Namespace):
    """What was signed of models; `get` answers the signed bytes."""

    list: Pages[AttestationItem] = Pages(
        "/v1/attestations",
        Listed(
            "attestation ls",
            "List the attestations that you may read, the newest first.",
            "attestation: digest, name, run, signer",
            none="No attestation is like that, as far as you may read",
            options=(
                Filter("run", "RUN", "List those of this run."),
                Filter("name", "NAME", "List those of models of this name."),
                SINCE,
                BEFORE,
            ),
        ),
    )
    get: Call[bytes] = Call("GET", "/v1/attestations/{digest}")
    files: Call[Files] = Call("GET", "/v1/attestations/{digest}/files")
    file: Call[bytes] = Call("GET", "/v1/attestations/{digest}/files/{path}")
    by_subject: Call[Json] = Call("GET", "/v1/attestations:by-subject")
    verify: Call[Json] = Call("POST", "/v1/attestations:verify", kind=SIGNED)
    lineage: Call[Json] = Call("GET", "/v1/attestations/{digest}/lineage")
    layer: Call[Json] = Call("GET", "/v1/attestations/{digest}/layers/{group}")
    memorization: Call[Json] = Call("GET", "/v1/attestations/{digest}/memorization")


class Policies(Namespace):
    """Depth policies and trust roots; `get` and `trust_root` answer the signed bytes."""

    list: Pages[Json] = Pages(
        "/v1/policies",
        Listed(
            "policy ls",
            "List the policies that you may read.",
            "name, version, digest, signer",
            none="No policy is like that, as far as you may read",
            options=(Filter("name", "NAME", "List those of this name."),),
        ),
    )
    get: Call[bytes] = Call("GET", "/v1/policies/{digest}")
    compare: Call[Json] = Call("GET", "/v1/policies:diff")
    explain: Call[Json] = Call("POST", "/v1/policies/{digest}:explain")
    trust_roots: Pages[Json] = Pages("/v1/trust-roots")
    trust_root: Call[bytes] = Call("GET", "/v1/trust-roots/{digest}")


class Corpora(Namespace):
    """Corpora, and records by their digest or their text."""

    list: Pages[Json] = Pages(
        "/v1/corpora",
        Listed(
            "corpus ls",
            "List the corpora that you may read, as their credentials state them.",
            "name, supplier, sensitivity",
            none="No corpus is there that you may read",
            options=(Filter("supplier", "NAME", "List those of this supplier."),),
        ),
    )
    get: Call[Json] = Call("GET", "/v1/corpora/{corpus}")
    record: Call[Json] = Call("GET", "/v1/records/{sha256}")
    search: Call[Json] = Call("POST", "/v1/records:search")


class Ledgers(Namespace):
    """What each step used, and the proofs of it."""

    get: Call[Json] = Call("GET", "/v1/ledgers/{run}")
    checkpoint: Call[str] = Call("GET", "/v1/ledgers/{run}/checkpoint")
    tile: Call[bytes] = Call("GET", "/v1/ledgers/{run}/tile/{path}")
    entry: Call[Json] = Call("GET", "/v1/ledgers/{run}/entries/{index}")
    inclusion: Call[Json] = Call("GET", "/v1/ledgers/{run}/proofs/inclusion")
    consistency: Call[Json] = Call("GET", "/v1/ledgers/{run}/proofs/consistency")


class Cases(Namespace):
    """Questions of rights holders."""

    open: Call[Json] = Call("POST", "/v1/cases")
    list: Pages[Json] = Pages("/v1/cases")
    get: Call[Json] = Call("GET", "/v1/cases/{case}")
    standing: Call[Json] = Call("GET", "/v1/cases/{case}/standing")
    signed_answer: Call[bytes] = Call("GET", "/v1/cases/{case}/answer")
    search: Call[Json] = Call("POST", "/v1/cases/{case}:search")
    answer: Call[Json] = Call("POST", "/v1/cases/{case}:answer")
    decide: Call[Json] = Call("POST", "/v1/cases/{case}:decide")
    link: Call[Json] = Call("POST", "/v1/cases/{case}:link")


class Projects(Namespace):
    """Workspaces, projects and their settings."""

    list: Pages[Json] = Pages(
        "/v1/projects",
        Listed(
            "project ls",
            "List projects.",
            "project: name, workspace, archived",
            none="No project is there that you see",
        ),
    )
    make: Call[Json] = Call("POST", "/v1/projects")
    get: Call[Json] = Call("GET", "/v1/projects/{project}")
    change: Call[Json] = Call("PATCH", "/v1/projects/{project}")
    space: Call[Json] = Call("GET", "/v1/projects/{project}/space")
    delete: Call[Deletions] = Call("DELETE", "/v1/projects/{project}")
    settings: Call[Json] = Call("GET", "/v1/projects/{project}/settings")
    set: Call[Json] = Call("PUT", "/v1/projects/{project}/settings")
    workspaces: Pages[Json] = Pages(
        "/v1/workspaces",
        Listed(
            "workspace ls",
            "List workspaces.",
            "workspace: name, description, archived",
            none="No workspace is there that you see",
        ),
    )
    make_workspace: Call[Json] = Call("POST", "/v1/workspaces")
    workspace: Call[Json] = Call("GET", "/v1/workspaces/{workspace}")
    change_workspace: Call[Json] = Call("PATCH", "/v1/workspaces/{workspace}")


class People(Namespace):
    """Users, roles and tokens."""

    whoami: Call[Json] = Call("GET", "/v1/whoami")
    users: Pages[Json] = Pages("/v1/users")
    user: Call[Json] = Call("GET", "/v1/users/{user}")
    change: Call[Json] = Call("PATCH", "/v1/users/{user}")
    roles: Pages[Json] = Pages("/v1/role-bindings")
    bind: Call[Json] = Call("POST", "/v1/role-bindings")
    unbind: Call[None] = Call("DELETE", "/v1/role-bindings/{binding}")
    tokens: Pages[Json] = Pages("/v1/tokens")
    make_token: Call[Json] = Call("POST", "/v1/tokens")
    revoke_token: Call[Json] = Call("POST", "/v1/tokens/{token}:revoke")


class Webhooks(Namespace):
    """Who is told what happens."""

    list: Pages[Json] = Pages(
        "/v1/webhooks",
        Listed(
            "webhook ls",
            "List the webhooks.",
            "webhook: id, url, project, events: kinds",
            none="No webhooks yet. Make one: govray webhook add URL",
            blank="all",
            cells={"events": lambda row: " ".join(row["kinds"])},
        ),
    )
    add: Call[Json] = Call("POST", "/v1/webhooks")
    remove: Call[Json] = Call("DELETE", "/v1/webhooks/{webhook}")
    test: Call[Json] = Call("POST", "/v1/webhooks/{webhook}:test")
    deliveries: Pages[Json] = Pages("/v1/webhooks/{webhook}/deliveries")
    resend: Call[Json] = Call("POST", "/v1/webhooks/{webhook}/deliveries/{event}:resend")


class Tasks(Namespace):
    """Notebooks, shells and commands."""

    list: Pages[Task] = Pages(
        "/v1/tasks",
        Listed(
            "task ls",
            "List the tasks that you may see, the newest first.",
            "id, kind, name, project, user, state, why",
            none="No task is there that you may see",
            options=(USER,),
        ),
    )
    submit: Call[Task] = Call("POST", "/v1/tasks")
    get: Call[Task] = Call("GET", "/v1/tasks/{task}")
    open: Call[Json] = Call("POST", "/v1/tasks/{task}:open")
    files: Call[Json] = Call("GET", "/v1/tasks/{task}/files")
    file: Call[bytes] = Call("GET", "/v1/tasks/{task}/files/{path}")
    stop: Call[Task] = Call("POST", "/v1/tasks/{task}:stop")
    kill: Call[Task] = Call("POST", "/v1/tasks/{task}:kill")
    resume: Call[Task] = Call("POST", "/v1/tasks/{task}:resume")
    archive: Call[Task] = Call("POST", "/v1/tasks/{task}:archive")
    unarchive: Call[Task] = Call("POST", "/v1/tasks/{task}:unarchive")
