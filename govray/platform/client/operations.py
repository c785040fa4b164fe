"""What a service can be asked, by noun: ``client.experiments.submit(…)``, ``client.models.list()``.

Each operation stands here once: method, path, and what its answer is. Fields of the path come
first, in their order. All others are keywords in snake case: the query of a GET, the body of what
changes something. The service checks them. ``body=`` is an object that is sent as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic.alias_generators import to_camel

from govray.errors import Refused, UsageError
from govray.platform.client.connection import Connection, Told, segment
from govray.platform.client.documents import Model, Version
from govray.platform.client.downloads import Downloaded, download
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
    Promoted,
    Run,
    Task,
)

T = TypeVar("T")
Json = dict[str, Any]
"""An object as the reference of the HTTP API has it."""

HEADERS = {"idempotency_key": "Idempotency-Key", "govray_case_key": "Govray-Case-Key"}
"""Keywords that are headers."""
QUERY = {"proofs"}
"""Keywords that are in the query, whatever the method."""
SIGNED = "application/vnd.dsse.envelope.v1+json"


class Namespace:
    """The operations on one kind of thing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection


class Call(Generic[T]):
    """One operation of the service.

    Args:
        method: Of HTTP.
        path: With ``{fields}``; one called ``path`` may have slashes.
        answer: ``bytes``, ``str``, a document, or a type of JSON; ``type(None)`` for no answer.
        kind: Of the body, where ``data=`` gives it as bytes.
    """

    def __init__(self, method: str, path: str, answer: type[T], *, kind: str = "") -> None:
        self.method, self.path, self.answer, self.kind = method, path, answer, kind
        self.fields = re.findall(r"\{(\w+)\}", path)

    def __get__(self, namespace: Namespace, kind: type) -> Callable[..., T]:
        def ask(
            *fields: object, body: Json | None = None, data: bytes | None = None, **more: Any
        ) -> Any:
            path, query, given, header = self.parts(fields, more)
            if body is None and data is None:
                body = given
            return namespace._connection.ask(
                self.method,
                path,
                None if self.answer is type(None) else self.answer,
                query=query,
                header=header,
                body=body,
                data=data,
                kind=self.kind or "application/json",
            )

        return ask

    def parts(
        self, fields: tuple[object, ...], more: dict[str, Any]
    ) -> tuple[str, Json, Json | None, Json]:
        """Path, query, body and headers of a call. A GET or a DELETE has no body.

        Raises:
            TypeError: Another number of fields than the path has.
        """
        if len(fields) != len(self.fields):
            raise TypeError(f"{self.path} takes {', '.join(self.fields) or 'no field'} in order")
        named = {
            name: segment(value, slashes=name == "path")
            for name, value in zip(self.fields, fields, strict=True)
        }
        header = {HEADERS[name]: value for name, value in more.items() if name in HEADERS}
        rest = {name: value for name, value in more.items() if name not in HEADERS}
        asked = {to_camel(name): value for name, value in rest.items()}
        queried = {name: asked.pop(name) for name in QUERY & asked.keys()}
        if self.method in ("GET", "DELETE"):
            return self.path.format(**named), {**asked, **queried}, None, header
        return self.path.format(**named), queried, asked, header


class Pages(Call[T]):
    """The items of all pages, each page asked for when it is needed."""

    def __init__(self, path: str, answer: type[T]) -> None:
        super().__init__("GET", path, answer)

    def __get__(  # type: ignore[override]  # an iterator of what the base answers
        self, namespace: Namespace, kind: type
    ) -> Callable[..., Iterator[T]]:
        def ask(*fields: object, **more: Any) -> Iterator[T]:
            path, query, _, header = self.parts(fields, more)
            return namespace._connection.pages(path, self.answer, query=query, header=header)

        return ask


class Service(Namespace):
    """The service itself."""

    live = Call("GET", "/v1/live", Json)
    ready = Call("GET", "/v1/ready", Json)
    health = Call("GET", "/v1/health", Json)
    sign_in = Call("GET", "/v1/sign-in", Json)
    metrics = Call("GET", "/metrics", str)
    audit = Pages("/v1/audit", Json)
    usage = Pages("/v1/usage", Json)
    usage_csv = Call("GET", "/v1/usage.csv", str)
    alerts = Pages("/v1/alerts", Json)


class Experiments(Namespace):
    """What was submitted or started by hand, and where it stands."""

    check = Call("POST", "/v1/experiments:check", ExperimentCheck)
    submit = Call("POST", "/v1/experiments", Experiment)
    list = Pages("/v1/experiments", ExperimentItem)
    pools = Call("GET", "/v1/pools", Json)
    get = Call("GET", "/v1/experiments/{experiment}", Experiment)
    stop = Call("POST", "/v1/experiments/{experiment}:stop", Experiment)
    kill = Call("POST", "/v1/experiments/{experiment}:kill", Experiment)
    resume = Call("POST", "/v1/experiments/{experiment}:resume", Experiment)
    archive = Call("POST", "/v1/experiments/{experiment}:archive", Experiment)
    unarchive = Call("POST", "/v1/experiments/{experiment}:unarchive", Experiment)
    put_tags = Call("PUT", "/v1/experiments/{experiment}/tags", Json)
    delete = Call("DELETE", "/v1/experiments/{experiment}", Deletions)
    restore = Call("POST", "/v1/experiments/{experiment}:restore", Deletions)


class Runs(Namespace):
    """Runs, what they measured, and their checkpoints."""

    list = Pages("/v1/runs", Run)
    get = Call("GET", "/v1/runs/{run}", Run)
    metrics = Pages("/v1/runs/{run}/metrics", Metric)
    metrics_csv = Call("GET", "/v1/runs/{run}/metrics.csv", str)
    decisions = Pages("/v1/runs/{run}/decisions", Json)
    checkpoints = Pages("/v1/runs/{run}/checkpoints", Checkpoint)
    pins = Call("GET", "/v1/runs/{run}/pins", CheckpointPins)
    pin = Call("POST", "/v1/runs/{run}/checkpoints/{step}:pin", CheckpointPin)
    unpin = Call("POST", "/v1/runs/{run}/checkpoints/{step}:unpin", CheckpointPin)
    delete = Call("DELETE", "/v1/runs/{run}", Deletion)
    restore = Call("POST", "/v1/runs/{run}:restore", Deletion)
    deletions = Pages("/v1/deletions", Deletion)
    deletion = Call("GET", "/v1/deletions/{run}", Deletion)
    logs = Call("GET", "/v1/runs/{run}/logs", Json)
    log = Call("GET", "/v1/runs/{run}/logs/{name}", Json)
    log_text = Call("GET", "/v1/runs/{run}/logs/{name}/text", bytes)
    checkpoint_files = Call("GET", "/v1/runs/{run}/checkpoints/{step}/files", Files)
    checkpoint_file = Call("GET", "/v1/runs/{run}/checkpoints/{step}/files/{path}", bytes)

    def download_checkpoint(
        self, run: str, step: int, *, into: Path, told: Told = lambda done, whole: None
    ) -> Downloaded:
        """Fetch a checkpoint to the new folder ``into``, as `downloads.download`."""
        listing = f"/v1/runs/{segment(run)}/checkpoints/{step}/files"
        return download(self._connection, listing, into, told=told)

    def download_evidence(
        self, run: str, *, into: Path, told: Told = lambda done, whole: None
    ) -> Downloaded:
        """Fetch what was signed of a run, as `downloads.download`: its model's ``governance/``.
        Raises `UsageError`: the run has no attestation that the caller may read."""
        path, refused = "/v1/attestations", None
        for each in self._connection.pages(path, AttestationItem, query={"run": run}):
            listing = f"{path}/{each.digest}/files"
            try:
                return download(self._connection, listing, into, only="governance/", told=told)
            except Refused as error:  # of the folder another attestation is in force
                refused = error
        raise refused or UsageError(
            f"no attestation of the run {run!r} is there that you may read",
            where=self._connection.server,
            do="A run is attested when it has finished; see govray runs ls",
        )


class Archives(Namespace):
    """Working directories on the cluster's storage, by digest."""

    get = Call("GET", "/v1/archives/{digest}", Archive)
    put = Call("PUT", "/v1/archives/{digest}", Archive, kind="application/zip")


class Models(Namespace):
    """The registry."""

    list = Pages("/v1/models", Model)
    get = Call("GET", "/v1/models/{model}", Model)
    versions = Pages("/v1/models/{model}/versions", Version)
    find = Pages("/v1/versions", FoundVersion)
    register = Call("POST", "/v1/models/{model}/versions", Version)
    version = Call("GET", "/v1/models/{model}/versions/{version}", Version)
    annotate = Call("PATCH", "/v1/models/{model}/versions/{version}", Version)
    promote = Call("POST", "/v1/models/{model}/versions/{version}:promote", Promoted)
    lineage = Call("GET", "/v1/models/{model}/versions/{version}/lineage", Json)
    layer = Call("GET", "/v1/models/{model}/versions/{version}/layers/{group}", Json)
    memorization = Call("GET", "/v1/models/{model}/versions/{version}/memorization", Json)

    def download(
        self,
        model: str,
        version: str | None = None,
        *,
        into: Path,
        told: Told = lambda done, whole: None,
        check: Callable[[Path, bool], None] = lambda folder, whole: None,
    ) -> tuple[Version, Downloaded]:
        """Fetch a version's files to the new folder ``into``, as `downloads.download`. Without a
        version it is the one in production. Raises `UsageError`: none is."""
        number = version or self.get(model).production
        if number is None:
            raise UsageError(
                "no version is in production",
                where=model,
                do=f"Name a version; see govray model versions {model}",
            )
        found = self.version(model, number)
        listing = f"/v1/attestations/{found.attestation}/files"
        return found, download(self._connection, listing, into, told=told, check=check)


class Attestations(Namespace):
    """What was signed of models; `get` answers the signed bytes."""

    list = Pages("/v1/attestations", AttestationItem)
    get = Call("GET", "/v1/attestations/{digest}", bytes)
    files = Call("GET", "/v1/attestations/{digest}/files", Files)
    file = Call("GET", "/v1/attestations/{digest}/files/{path}", bytes)
    by_subject = Call("GET", "/v1/attestations:by-subject", Json)
    verify = Call("POST", "/v1/attestations:verify", Json, kind=SIGNED)
    lineage = Call("GET", "/v1/attestations/{digest}/lineage", Json)
    layer = Call("GET", "/v1/attestations/{digest}/layers/{group}", Json)
    memorization = Call("GET", "/v1/attestations/{digest}/memorization", Json)


class Policies(Namespace):
    """Depth policies and trust roots; `get` and `trust_root` answer the signed bytes."""

    list = Pages("/v1/policies", Json)
    get = Call("GET", "/v1/policies/{digest}", bytes)
    compare = Call("GET", "/v1/policies:diff", Json)
    explain = Call("POST", "/v1/policies/{digest}:explain", Json)
    trust_roots = Pages("/v1/trust-roots", Json)
    trust_root = Call("GET", "/v1/trust-roots/{digest}", bytes)


class Corpora(Namespace):
    """Corpora, and records by their digest or their text."""

    list = Pages("/v1/corpora", Json)
    get = Call("GET", "/v1/corpora/{corpus}", Json)
    record = Call("GET", "/v1/records/{sha256}", Json)
    search = Call("POST", "/v1/records:search", Json)


class Ledgers(Namespace):
    """What each step used, and the proofs of it."""

    get = Call("GET", "/v1/ledgers/{run}", Json)
    checkpoint = Call("GET", "/v1/ledgers/{run}/checkpoint", str)
    tile = Call("GET", "/v1/ledgers/{run}/tile/{path}", bytes)
    entry = Call("GET", "/v1/ledgers/{run}/entries/{index}", Json)
    inclusion = Call("GET", "/v1/ledgers/{run}/proofs/inclusion", Json)
    consistency = Call("GET", "/v1/ledgers/{run}/proofs/consistency", Json)


class Cases(Namespace):
    """Questions of rights holders."""

    open = Call("POST", "/v1/cases", Json)
    list = Pages("/v1/cases", Json)
    get = Call("GET", "/v1/cases/{case}", Json)
    standing = Call("GET", "/v1/cases/{case}/standing", Json)
    signed_answer = Call("GET", "/v1/cases/{case}/answer", bytes)
    search = Call("POST", "/v1/cases/{case}:search", Json)
    answer = Call("POST", "/v1/cases/{case}:answer", Json)
    decide = Call("POST", "/v1/cases/{case}:decide", Json)
    link = Call("POST", "/v1/cases/{case}:link", Json)


class Projects(Namespace):
    """Workspaces, projects and their settings."""

    list = Pages("/v1/projects", Json)
    make = Call("POST", "/v1/projects", Json)
    get = Call("GET", "/v1/projects/{project}", Json)
    change = Call("PATCH", "/v1/projects/{project}", Json)
    space = Call("GET", "/v1/projects/{project}/space", Json)
    delete = Call("DELETE", "/v1/projects/{project}", Deletions)
    settings = Call("GET", "/v1/projects/{project}/settings", Json)
    set = Call("PUT", "/v1/projects/{project}/settings", Json)
    workspaces = Pages("/v1/workspaces", Json)
    make_workspace = Call("POST", "/v1/workspaces", Json)
    workspace = Call("GET", "/v1/workspaces/{workspace}", Json)
    change_workspace = Call("PATCH", "/v1/workspaces/{workspace}", Json)


class People(Namespace):
    """Users, groups, roles and tokens."""

    whoami = Call("GET", "/v1/whoami", Json)
    users = Pages("/v1/users", Json)
    user = Call("GET", "/v1/users/{user}", Json)
    change = Call("PATCH", "/v1/users/{user}", Json)
    groups = Pages("/v1/groups", Json)
    members = Pages("/v1/groups/{group}/members", Json)
    add_member = Call("PUT", "/v1/groups/{group}/members/{user}", Json)
    remove_member = Call("DELETE", "/v1/groups/{group}/members/{user}", type(None))
    roles = Pages("/v1/role-bindings", Json)
    bind = Call("POST", "/v1/role-bindings", Json)
    unbind = Call("DELETE", "/v1/role-bindings/{binding}", type(None))
    tokens = Pages("/v1/tokens", Json)
    make_token = Call("POST", "/v1/tokens", Json)
    revoke_token = Call("POST", "/v1/tokens/{token}:revoke", Json)


class Webhooks(Namespace):
    """Who is told what happens."""

    list = Pages("/v1/webhooks", Json)
    add = Call("POST", "/v1/webhooks", Json)
    remove = Call("DELETE", "/v1/webhooks/{webhook}", Json)
    test = Call("POST", "/v1/webhooks/{webhook}:test", Json)
    deliveries = Pages("/v1/webhooks/{webhook}/deliveries", Json)
    resend = Call("POST", "/v1/webhooks/{webhook}/deliveries/{event}:resend", Json)


class Tasks(Namespace):
    """Notebooks, shells and commands."""

    list = Pages("/v1/tasks", Task)
    submit = Call("POST", "/v1/tasks", Task)
    get = Call("GET", "/v1/tasks/{task}", Task)
    open = Call("POST", "/v1/tasks/{task}:open", Json)
    files = Call("GET", "/v1/tasks/{task}/files", Json)
    file = Call("GET", "/v1/tasks/{task}/files/{path}", bytes)
    stop = Call("POST", "/v1/tasks/{task}:stop", Task)
    kill = Call("POST", "/v1/tasks/{task}:kill", Task)
    resume = Call("POST", "/v1/tasks/{task}:resume", Task)
    archive = Call("POST", "/v1/tasks/{task}:archive", Task)
    unarchive = Call("POST", "/v1/tasks/{task}:unarchive", Task)
