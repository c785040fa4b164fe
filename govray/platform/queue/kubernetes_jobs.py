"""Submissions on Kubernetes: a `Cluster` over its API server. A RayJob for each attempt.

Jobs of a project run in its namespace, under its account and user. No job has the API's token, and
nothing reaches its pods from outside (`deploy/kubernetes`). So other jobs of its project are all
that could alter a run.

start
    The RayJob is made without the label of its queue, so nobody admits it. Then its secret is made.
    The label comes last. A job without it has not arrived, and the start is asked for again.
stop
    The RayJob is deleted. It stays visible until its pods are gone, which commit first (`in_pod`).
preemption
    Kueue suspends the job. It would start the same attempt again later. So the queue deletes it,
    and starts another attempt.

Where pods never start, KubeRay ends the job after ``start_s``, or Kueue evicts it before.

Source: KubeRay v1.7.0, controllers/ray/rayjob_controller.go; Kueue v0.19.2,
apis/kueue/v1beta2/workload_types.go.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from govray.errors import UsageError
from govray.governance.formats.document import parse_time
from govray.governance.submission.register_forms import Isolation
from govray.platform.queue import in_pod
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
    from_anywhere,
    make_folder,
    variables,
    with_variables,
)
from govray.platform.queue.kubernetes_api import KubernetesApi, Object
from govray.platform.queue.placement import Slot
from govray.platform.queue.ray_job import (
    KIND,
    OURS,
    QUEUE,
    SUBMISSION,
    Pods,
    Tenant,
    ray_job,
    secret,
)
from govray.platform.store.tables import QueueEntry
from govray.platform.tasks.task_file import KINDS
from govray.storage.place import Place

Asked = Callable[[QueueEntry], tuple[Mapping[str, str], str | None, int | None]]
"""The labels and the type of GPU that nodes have to have, and the memory of each worker."""

KEPT = timedelta(days=1)
"""How long a RayJob that has ended can be looked at."""

_NO_EVICTION = frozenset({"PodsReadyTimeout", "Deactivated"})
"""Kueue's reasons of an eviction after which the same job would fare no better."""

_CODE = re.compile(r"Job entrypoint command failed with exit code (-?\d+)")
"""What Ray 2.60 says of a job that failed. KubeRay hands on no code but in these words."""
_MESSAGE = 4096  # characters of what a job said last
_WHY = 500  # and of what Kueue says
_LINES = "50"  # of a log


class KubernetesJobs:
    """The jobs of all projects on one Kubernetes cluster.

    Args:
        tenants: The namespace, account and queue of each project, by its name.
        storage: Where runs and archives lie, by the name that pods have for it too.
        working_dir: What a run gets that was submitted without a working directory: a folder of
            the image.
        slots: Of each pool, by name.
        asked: What an experiment asks of its workers' nodes.
    """

    isolation: Isolation = "project"

    def __init__(
        self,
        api: KubernetesApi,
        storage: Place,
        *,
        tenants: Mapping[str, Tenant],
        pods: Pods,
        slots: Mapping[str, Slot],
        register: AttestorRegister,
        working_dir: Path | None = None,
        runtime_env: RuntimeEnv = lambda row, folder: {},
        asked: Asked = lambda row: ({}, None, None),
    ) -> None:
        self._api = api
        self._storage = storage
        self._tenants = tenants
        self._pods = pods
        self._slots = slots
        self._register = register
        self._working_dir = working_dir
        self._runtime_env = runtime_env
        self._asked = asked
        self._seen: dict[str, str] = {}

    def start(self, row: QueueEntry) -> None:
        assert row.job is not None
        tenant = self._tenant(row)
        environment, command = self._environment(row), entrypoint(row, self._storage)
        slot = self._slot(row)
        told = self._register.variables(row, environment, self.isolation)
        order = in_pod.order(
            kind=row.kind,
            archive=row.archive,
            storage=from_anywhere(self._storage),
            working_dir=str(self._working_dir) if self._working_dir else None,
            jobs=self._pods.jobs,
            command=command + (UNSIGNED if told else ""),
            variables=told,
        )
        jobs, at = _jobs(tenant.namespace), _job(tenant.namespace, row.job)
        made = self._api.create(
            jobs, ray_job(row.job, row, tenant, self._pods, slot, environment)
        ) or self._api.get(at)
        if made is None:
            raise Unreachable("the job is gone before it is queued", where=at)
        kept = secret(row.job, row, made, {in_pod.ORDER: order, **files(row)})
        secrets = f"/api/v1/namespaces/{tenant.namespace}/secrets"
        if self._api.create(secrets, kept) is None:
            self._api.replace(f"{secrets}/{row.job}", kept)
        self._api.merge(at, {"metadata": {"labels": {QUEUE: tenant.queue}}})
        self._seen[row.job] = tenant.namespace

    def look(self, job: str) -> Job | None:
        found = self._find(job)
        if found is None or QUEUE not in found["metadata"].get("labels", {}):
            return None
        return self._read(found)

    def stop(self, job: str) -> None:
        found = self._find(job)
        if found is not None:
            self._api.delete(_job(found["metadata"]["namespace"], job))

    def running(self) -> list[Job]:
        """Also forgets what ended long ago, where nothing of it runs."""
        read = []
        for namespace in self._namespaces():
            for each in self._api.items(_jobs(namespace), OURS):
                job = self._read(each)
                if not job.ended:
                    read.append(job)
                elif (at := _status(each).get("endTime")) and datetime.now(UTC) - parse_time(
                    at
                ) > KEPT:
                    self._api.delete(_job(namespace, job.name))
        return read

    def _tenant(self, row: QueueEntry) -> Tenant:
        tenant = self._tenants.get(row.project)
        if tenant is None:
            raise JobRefused(
                f"project {row.project!r} has no namespace",
                where=f"submission {row.id}",
                do="Let the operator name one in queue.yaml, kubernetes.projects",
            )
        return tenant

    def _slot(self, row: QueueEntry) -> Slot:
        """The pool's, on nodes with what the experiment asks for too. The pool's labels go first,
        so a submitter leads no pod elsewhere."""
        slot, (labels, kind, memory) = self._slots[row.pool], self._asked(row)
        if kind not in (None, slot.accelerator_type):
            raise JobRefused(
                f"pool {row.pool!r} has no GPU {kind!r}, as far as queue.yaml says",
                where=f"submission {row.id}",
                do="Choose another pool, or let the operator state its accelerator_type",
            )
        if memory is not None and memory > slot.memory:
            raise JobRefused(
                f"each worker asks for {memory} bytes of memory, and a slot of pool {row.pool!r} "
                f"has {slot.memory}",
                where=f"submission {row.id}",
                do="Ask for less in resources.memory, or choose another pool",
            )
        return replace(slot, labels={**labels, **slot.labels}, memory=memory or slot.memory)

    def _environment(self, row: QueueEntry) -> dict[str, Any]:
        """Ray's environment of a job; its folder is made in its pod. Here it is looked at."""
        with tempfile.TemporaryDirectory(prefix="govray-job-") as made, preparing(self._storage):
            folder = Path(made) / "working_dir"
            if row.archive is not None or self._working_dir is None:
                make_folder(
                    folder,
                    kind=row.kind,
                    archive=row.archive,
                    storage=self._storage,
                    working_dir=None,
                    jobs=None,
                    files=files(row),
                    where=f"submission {row.id}",
                )
            found = self._runtime_env(row, folder)
            if "image_uri" in found:
                do = "Leave environment.image out, or let the operator build it"
                raise UsageError("the image is the operator's", where="environment", do=do)
        found.pop("working_dir", None)
        return with_variables(found, variables(row, self._slots[row.pool]))

    def _namespaces(self) -> list[str]:
        return sorted(each.namespace for each in self._tenants.values())

    def _find(self, job: str) -> Object | None:
        """A RayJob in whatever project's namespace it is."""
        known = self._seen.get(job)
        for namespace in [known] if known else self._namespaces():
            found = self._api.get(_job(namespace, job))
            if found is not None:
                self._seen[job] = namespace
                return found
        self._seen.pop(job, None)
        return None

    def _read(self, found: Object) -> Job:
        """What a RayJob says of its job."""
        try:
            state, code, message = self._state(found)
            waits = None
            if state is JobState.WAITING:
                waits, message = message or None, ""
            meta, status = found["metadata"], _status(found)
            node = self._node(found) if state is JobState.RUNNING else None
            if state is JobState.FAILED and not message:
                message = self._log(meta["namespace"], status)
            labels = meta.get("labels", {})
            return Job(
                name=meta["name"],
                submission=str(labels.get(SUBMISSION, "")),
                state=state,
                code=code,
                message=message[-_MESSAGE:],
                node=node,
                waits=waits,
            )
        except (KeyError, TypeError, AttributeError):
            raise Unreachable(
                "what answers does not speak of RayJobs as KubeRay does",
                where=self._api.address,
                do="Check the operator's version: 1.7",
            ) from None

    def _state(self, found: Object) -> tuple[JobState, int | None, str]:
        status = _status(found)
        message = str(status.get("message") or "")
        match status.get("jobDeploymentStatus"):
            case "Complete":
                stopped = status.get("jobStatus") == "STOPPED"
                return (JobState.STOPPED if stopped else JobState.SUCCEEDED), 0, message
            case "Failed":
                code = _CODE.match(message)
                said = message if code else _joined(status.get("reason"), message)
                return JobState.FAILED, int(code[1]) if code else None, said
            case "ValidationFailed":
                # As a driver refuses: the same job would be refused again.
                said = f"govray: KubeRay refuses the job: {message}"
                return JobState.FAILED, UsageError.exit_code, said
        if "deletionTimestamp" in found["metadata"]:
            return JobState.RUNNING, None, ""
        if found["spec"].get("suspend"):
            told = self._kueue(found)
            evicted = told.get(("Evicted", "True"))
            if evicted is None:
                kept = told.get(("QuotaReserved", "False"), {}).get("message")
                return JobState.WAITING, None, f"it waits in Kueue: {kept}"[:_WHY] if kept else ""
            if evicted["reason"] not in _NO_EVICTION:
                return JobState.PREEMPTED, None, ""
            self._api.delete(_job(found["metadata"]["namespace"], found["metadata"]["name"]))
            why = f"Kueue gave its place up, {evicted['reason']}: {evicted.get('message')}"
            return JobState.FAILED, None, why
        running = status.get("jobStatus") == "RUNNING"
        return (JobState.RUNNING if running else JobState.WAITING), None, ""

    def _kueue(self, found: Object) -> dict[tuple[str, str], Object]:
        """What Kueue says of a job: its conditions, by type and status."""
        meta = found["metadata"]
        path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{meta['namespace']}/workloads"
        return {
            (condition["type"], condition["status"]): condition
            for each in self._api.items(path, f"kueue.x-k8s.io/job-uid={meta['uid']}")
            for condition in _status(each).get("conditions") or []
        }

    def _node(self, found: Object) -> str | None:
        """The address of the pod that runs a job's command."""
        status = _status(found)
        head = (status.get("rayClusterStatus") or {}).get("head") or {}
        if found["metadata"]["labels"].get(KIND) not in KINDS:
            return head.get("podIP")
        for pod in self._of_cluster(found["metadata"]["namespace"], status, "worker"):
            return _status(pod).get("podIP")
        return None

    def _log(self, namespace: str, status: Object) -> str:
        """What a head said last, where KubeRay has no words of the job."""
        for pod in self._of_cluster(namespace, status, "head"):
            name = pod["metadata"]["name"]
            path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
            return self._api.text(path, container="ray-head", tailLines=_LINES)
        return ""

    def _of_cluster(self, namespace: str, status: Object, kind: str) -> list[Object]:
        cluster = status.get("rayClusterName")
        selector = f"ray.io/cluster={cluster},ray.io/node-type={kind}"
        return self._api.items(f"/api/v1/namespaces/{namespace}/pods", selector) if cluster else []


def _jobs(namespace: str) -> str:
    return f"/apis/ray.io/v1/namespaces/{namespace}/rayjobs"


def _job(namespace: str, name: str) -> str:
    return f"{_jobs(namespace)}/{name}"


def _status(found: Object) -> Object:
    return found.get("status") or {}


def _joined(*said: object) -> str:
    return ": ".join(str(each) for each in said if each)
