"""Submissions as Ray Jobs: a `Cluster` over the dashboard's HTTP interface.

A job gets its working directory (`job_folder`), and metadata that Ray's dashboard shows.

A stop is SIGTERM to the driver, which commits and exits with code 75. Ray kills it after as many
seconds as RAY_JOB_STOP_WAIT_TIME_S says on the head node.

A job that is not there is told from a cluster that cannot be asked. A 404 of Ray names the job, and
that of a proxy does not. From the second nothing is concluded.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from govray.governance.submission.register_forms import Isolation
from govray.platform.queue.attestor_register import AttestorRegister
from govray.platform.queue.job import (
    UNSIGNED,
    Job,
    JobRefused,
    JobState,
    RuntimeEnv,
    Unreachable,
    entrypoint,
    preparing,
)
from govray.platform.queue.job_folder import (
    files,
    make_folder,
    metadata,
    variables,
    with_variables,
)
from govray.platform.queue.placement import Slot, placement
from govray.platform.store.tables import QueueEntry
from govray.storage.place import Place

TIMEOUT_S = 20.0
"""For each answer of the dashboard. Ray's client by itself waits without end."""

_STATES: Mapping[str, JobState] = {
    "PENDING": JobState.WAITING,
    "RUNNING": JobState.RUNNING,
    "SUCCEEDED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
    "STOPPED": JobState.STOPPED,
}
_TALKATIVE = (
    "ray.dashboard.modules.job.sdk",
    "ray.dashboard.modules.dashboard_sdk",
    "ray._private.runtime_env.packaging",
)
_MESSAGE = 4096  # characters of what a job said last


class _Client(JobSubmissionClient):
    """Ray's client, whose every request ends."""

    def _do_request(self, method: str, endpoint: str, **more: Any) -> Any:
        return super()._do_request(method, endpoint, **{"timeout": TIMEOUT_S} | more)

    def ask(self, method: str, endpoint: str) -> Any:
        return self._do_request(method, endpoint)


class RayJobs:
    """The jobs of one cluster. Any of them could have altered a run of another.

    Args:
        address: The dashboard's, such as ``http://127.0.0.1:8265``.
        storage: Where the archives of working directories lie: beside the runs.
        working_dir: What a run gets that was submitted without a working directory.
        jobs: govray's own entry points, which a task gets whose folder lacks them.
        slots: Of each pool, by name. Jobs of another go anywhere but to the head.
        register: The attestor's, which is told of each attempt before its job starts.
    """

    isolation: Isolation = "sharedCluster"

    def __init__(
        self,
        address: str,
        storage: Place,
        *,
        token: str | None = None,
        working_dir: Path | None = None,
        jobs: Path | None = None,
        slots: Mapping[str, Slot] | None = None,
        runtime_env: RuntimeEnv = lambda row, folder: {"working_dir": str(folder)},
        register: AttestorRegister | None = None,
    ) -> None:
        self.address = address
        self._storage = storage
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._working_dir = working_dir
        self._jobs = jobs
        self._slots = slots or {}
        self._runtime_env = runtime_env
        self._register = register
        self._client: _Client | None = None

    def start(self, row: QueueEntry) -> None:
        assert row.job is not None
        if self.look(row.job) is not None:
            return
        with tempfile.TemporaryDirectory(prefix="govray-job-") as made:
            with preparing(self._storage):
                folder = make_folder(
                    Path(made) / "working_dir",
                    kind=row.kind,
                    archive=row.archive,
                    storage=self._storage,
                    working_dir=self._working_dir,
                    jobs=self._jobs,
                    files=files(row),
                    where=f"submission {row.id}",
                )
                command = entrypoint(row, self._storage)
                slot = self._slots.get(row.pool, Slot())
                environment = with_variables(self._runtime_env(row, folder), variables(row, slot))
            where = placement(row.kind, slot, head=self._head())
            if self._register is not None:
                told = self._register.variables(row, environment, self.isolation)
                environment = with_variables(environment, told)
                command += UNSIGNED if told else ""
            with self._asking(row.job), _environment(RAY_RUNTIME_ENV_IGNORE_GITIGNORE="1"):
                self._connected().submit_job(
                    entrypoint=command,
                    submission_id=row.job,
                    runtime_env=environment,
                    metadata=metadata(row),
                    **where,
                )

    def look(self, job: str) -> Job | None:
        with self._asking(job):
            answer = self._connected().ask("GET", f"/api/jobs/{job}")
        if answer.status_code == 404 and answer.text == f"Job {job} does not exist":
            return None
        return self._job(self._parsed(answer, job), job)

    def stop(self, job: str) -> None:
        """Send SIGTERM to a job's driver; nothing where it has ended, or is not there."""
        with self._asking(job):
            answer = self._connected().ask("POST", f"/api/jobs/{job}/stop")
        if answer.status_code == 404 and answer.text == f"Job {job} does not exist":
            return
        self._parsed(answer, job)

    def running(self) -> list[Job]:
        with self._asking(self.address):
            answer = self._connected().ask("GET", "/api/jobs/")
        found = self._parsed(answer, self.address)
        if not isinstance(found, list):
            raise self._no_ray(self.address)
        ours = [each for each in found if _submission(each)]
        return [job for each in ours if not (job := self._job(each, self.address)).ended]

    def _head(self) -> str | None:
        """The id of the head; None if no other node is up."""
        with self._asking(self.address):
            answer = self._connected().ask("GET", "/nodes?view=summary")
        try:
            summary = self._parsed(answer, self.address)["data"]["summary"]
            nodes = [each["raylet"] for each in summary]
            up = {each["nodeId"]: each["isHeadNode"] for each in nodes if each["state"] == "ALIVE"}
        except (KeyError, TypeError):
            raise self._no_ray(self.address) from None
        return None if all(up.values()) else next((id for id, head in up.items() if head), None)

    def _connected(self) -> _Client:
        if self._client is None:
            for name in _TALKATIVE:
                logging.getLogger(name).setLevel(logging.WARNING)
            # Ray would prefer these to the address that we were given.
            with _environment(RAY_ADDRESS=None, RAY_API_SERVER_ADDRESS=None):
                self._client = _Client(self.address, headers=self._headers)
        return self._client

    def _parsed(self, answer: Any, where: str) -> Any:
        if answer.status_code == 200:
            try:
                return answer.json()
            except ValueError:
                pass
        raise Unreachable(
            f"the cluster answers {answer.status_code}: {_first_line(answer.text)}",
            where=where,
            do=f"Check that Ray's dashboard listens at {self.address}",
        )

    def _job(self, value: Any, where: str) -> Job:
        try:
            return Job(
                name=str(value["submission_id"]),
                submission=_submission(value),
                state=_STATES[value["status"]],
                code=value.get("driver_exit_code"),
                message=str(value.get("message") or "")[-_MESSAGE:],
                node=_address(value.get("driver_agent_http_address")),
            )
        except (KeyError, TypeError, AttributeError):
            raise self._no_ray(where) from None

    def _no_ray(self, where: str) -> Unreachable:
        return Unreachable(
            "what answers does not speak as Ray Jobs do",
            where=where,
            do=f"Check that Ray's dashboard listens at {self.address}, and its version",
        )

    @contextmanager
    def _asking(self, where: str) -> Iterator[None]:
        """Whatever Ray's client raises becomes one of two errors."""
        do = f"Check that Ray's dashboard listens at {self.address}, and the token"
        try:
            yield
        except OSError as error:  # requests' errors are of this kind
            self._client = None
            raise Unreachable(
                f"the cluster does not answer: {_first_line(str(error))}", where=where, do=do
            ) from None
        except (RuntimeError, ValueError, AuthenticationError) as error:
            # What Ray's client makes of an answer. The last is for a token, missing or wrong.
            said = str(error)
            if "already exists" in said:
                return
            if "status code 400" in said:
                raise JobRefused(f"Ray refuses the job: {_last_line(said)}", where=where) from None
            raise Unreachable(
                f"the cluster answers with an error: {_first_line(said)}", where=where, do=do
            ) from None


def _address(agent: str | None) -> str | None:
    """The IP address of the node that an agent's URL is of."""
    host = urlsplit(agent or "").hostname
    try:
        return str(ip_address(host)) if host else None
    except ValueError:
        return None


def _submission(value: Any) -> str:
    """The submission that a job is of, by its metadata; nothing if it is of none."""
    metadata = value.get("metadata") if isinstance(value, dict) else None
    return str(metadata.get("govray.submission", "")) if isinstance(metadata, dict) else ""


@contextmanager
def _environment(**variables: str | None) -> Iterator[None]:
    """Run with these variables; None: without."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing"])[0][:300].rstrip(".")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip(" .\t")]
    return (lines or ["nothing"])[-1][:300]
