"""Who asks which service: `connect` finds the address and the token, `Client` asks.

The address is given or GOVRAY_SERVER. The token is given, or GOVRAY_TOKEN, or the one that
`govray login` keeps for that address.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, get_args, get_type_hints

from pydantic.alias_generators import to_camel

from govray.errors import UsageError
from govray.platform.client.connection import Connection, CountedBody, Told, checked_url, segment
from govray.platform.client.downloads import ModelsWithFiles, RunsWithFiles
from govray.platform.client.logins import read_login
from govray.platform.wire import answers, operations
from govray.platform.wire.answers import Archive, Experiment, Run

ENDED = frozenset({"COMPLETED", "STOPPED", "KILLED", "ERROR"})
"""States that an experiment stays in until somebody resumes it."""
HEADERS = {"idempotency_key": "Idempotency-Key", "govray_case_key": "Govray-Case-Key"}
"""Keywords that are headers."""
QUERY = {"proofs"}
"""Keywords that are in the query, whatever the method."""
_LOOK_S = 2.0


class Client(Connection):
    """A service: its operations by noun, and what takes several of them."""

    def __init__(self, server: str, token: str | None = None) -> None:
        super().__init__(server, token)
        self.service = operations.Service(self)
        self.experiments = operations.Experiments(self)
        self.runs = RunsWithFiles(self)
        self.archives = operations.Archives(self)
        self.models = ModelsWithFiles(self)
        self.attestations = operations.Attestations(self)
        self.policies = operations.Policies(self)
        self.corpora = operations.Corpora(self)
        self.ledgers = operations.Ledgers(self)
        self.cases = operations.Cases(self)
        self.projects = operations.Projects(self)
        self.people = operations.People(self)
        self.webhooks = operations.Webhooks(self)
        self.tasks = operations.Tasks(self)

    def call(
        self,
        operation: operations.Call[Any],
        /,
        *fields: object,
        body: operations.Json | None = None,
        data: bytes | None = None,
        **more: Any,
    ) -> Any:
        """Send an operation with what its path, query, body and headers are to hold; the answer as
        `operations` annotates it. A GET or a DELETE has no body.

        Raises:
            TypeError: Another number of fields than the path has.
        """
        if len(fields) != len(operation.fields):
            names = ", ".join(operation.fields) or "no field"
            raise TypeError(f"{operation.path} takes {names} in order")
        named = {
            name: segment(value, slashes=name == "path")
            for name, value in zip(operation.fields, fields, strict=True)
        }
        path, answer = operation.path.format(**named), answer_of(operation)
        header = {HEADERS[name]: value for name, value in more.items() if name in HEADERS}
        given = {to_camel(name): value for name, value in more.items() if name not in HEADERS}
        query = {name: given.pop(name) for name in QUERY & given.keys()}
        if isinstance(operation, operations.Pages):
            return self.pages(path, answer, query=given | query, header=header)
        if operation.method in ("GET", "DELETE"):
            query, given = given | query, {}
        elif body is None and data is None:
            body = given
        return self.ask(
            operation.method,
            path,
            answer,
            query=query,
            header=header,
            body=body,
            data=data,
            kind=operation.kind or "application/json",
        )

    def send_archive(self, data: bytes, *, told: Told = lambda sent, whole: None) -> str:
        """Send the archive of a working directory, unless the service has it. Returns its digest.
        Raises `UsageError`: the service takes no archives, or not one of this size."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        try:
            self.archives.get(digest)
        except UsageError:
            path, body = f"/v1/archives/{segment(digest)}", CountedBody(data, told)
            self.ask("PUT", path, Archive, data=body, kind="application/zip")
        return digest

    def follow(
        self, experiment: str, *, told: Callable[[Run], object] | None = None
    ) -> Iterator[Experiment]:
        """An experiment each time that it has changed, from now until it has ended. ``told`` is
        called with each of its runs, each time that it has changed. Raises `UsageError`: there is
        no such experiment."""
        seen, runs = None, dict[str, Run]()
        while True:
            now = self.experiments.get(experiment)
            for run in self.runs.list(experiment=experiment) if told else ():
                if told and runs.get(run.id) != run:
                    told(run)
                runs[run.id] = run
            if now != seen:
                yield now
            seen = now
            if now.state in ENDED:
                return
            time.sleep(_LOOK_S)


@cache
def answer_of(operation: operations.Call[Any]) -> Any:
    """What `Connection.ask` reads an operation's answer as: by its annotation."""
    (answer,) = get_args(get_type_hints(operation.owner, localns=vars(answers))[operation.name])
    return None if answer is type(None) else answer


def connect(server: str | None = None, token: str | None = None) -> Client:
    """A client of a service. ``server``: its address; GOVRAY_SERVER by default. ``token``: by
    default GOVRAY_TOKEN, or what `govray login` keeps for that address."""
    given = server or os.environ.get("GOVRAY_SERVER")
    if not given:
        raise UsageError("no service is named", where="GOVRAY_SERVER", do="Set it to its address")
    address = checked_url(given)
    if token is None:
        token = os.environ.get("GOVRAY_TOKEN") or None
    if token is None and (login := read_login(address)) is not None:
        token = login.token
    return Client(address, token)
