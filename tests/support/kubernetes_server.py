"""An API server of Kubernetes for tests, with what KubeRay v1.7.0 and Kueue v0.19.2 do to RayJobs.

It is a server over HTTP: tokens, versions, conflicts, old pages, finalizers, webhooks.
`tick` lets both operators look once. Each rule names the file that it restates:

* KubeRay: ray-operator/controllers/ray/rayjob_controller.go, ``Reconcile``; utils/validation.go,
  ``ValidateRayJobSpec``; the fields of apis/ray/v1/rayjob_types.go.
* Kueue: pkg/controller/jobs/rayjob/rayjob_webhook.go, ``validateCreate``;
  pkg/controller/jobframework/validation.go, ``validateUpdateForQueueName``; conditions and reasons
  of apis/kueue/v1beta2/workload_types.go; messages of pkg/scheduler (flavorassigner.go,
  preemption.go) and pkg/controller/core/workload_controller.go.

Where GOVRAY_CRDS names the operators' definitions, objects are held to their schemas too.
"""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import jsonschema

from tests.support.operator_rules import NEEDED, schemas
from tests.support.web_server import Handler, web_server

Key = tuple[str, str, str]
TOKEN = "k" * 40
QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
STOP_JOB, FOREGROUND = "ray.io/rayjob-finalizer", "foregroundDeletion"
VALUES = {"low": -1, "normal": 0, "high": 1}
_SPEC = """
activeDeadlineSeconds backoffLimit rayClusterSpec submitterPodTemplate metadata clusterSelector
submitterConfig managedBy deletionStrategy entrypoint runtimeEnvYAML jobId submissionMode
entrypointResources entrypointNumCpus entrypointNumGpus ttlSecondsAfterFinished
preRunningDeadlineSeconds shutdownAfterJobFinishes suspend
"""
SPEC = frozenset(_SPEC.split())
"""Of a RayJob: an unknown one is pruned by a server, and refused where validation is strict."""
NOW = "2026-11-24T09:00:00Z"
VERBS = {
    ("GET", False): "get", ("POST", True): "create", ("PUT", False): "update",
    ("PATCH", False): "patch", ("DELETE", False): "delete",
}  # fmt: skip
"""Of a request to the server, for an object or for all of them."""


class Work(Protocol):
    """What runs in the pods of a job, once they have started."""

    code: int | None
    said: str

    def stop(self) -> None: ...


@dataclass
class Pretended:
    """A job that ends when the test says so, or as soon as it is told to."""

    code: int | None = None
    said: str = ""
    stops: bool = True

    def stop(self) -> None:
        if self.stops:
            self.code = 75


@dataclass
class KubernetesServer:
    """The server, its objects and its operators.

    Attributes:
        room: Pods of workers that Kueue's one ClusterQueue has quota for.
        run: What runs in the pods of a RayJob, given with its secret's files.
        faults: Answers in the place of the next ones: a status and a body, for each.
        at_call: Called after each request that was answered: raises where the asker ends.
        starts: False: pods stay pending.
        old: Pages after the first are too old, so many times.
    """

    namespaces: set[str] = field(default_factory=lambda: {"ml-a", "ml-b"})
    room: int = 4
    run: Callable[[Any, dict[str, bytes]], Work] = lambda job, files: Pretended()
    starts: bool = True
    old: int = 0
    page: int = 250
    faults: list[tuple[int, Any]] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    objects: dict[Key, Any] = field(default_factory=dict)
    work: dict[str, Work] = field(default_factory=dict)
    ran: list[tuple[str, str]] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    address: str = ""

    def __post_init__(self) -> None:
        self._version = 0
        self.lock = threading.RLock()
        self.schema = _published()

    # The server

    def answer(self, method: str, target: str, body: Any, token: str | None) -> tuple[int, Any]:
        self.requests.append((method, target))
        if self.faults:
            return self.faults.pop(0)
        if token != f"Bearer {TOKEN}":
            return said(401, "Unauthorized", "Unauthorized")
        parts = urlsplit(target)
        match = re.fullmatch(
            r"(?:/api/v1|/apis/[^/]+/[^/]+)/namespaces/([^/]+)/(\w+)(?:/([^/]+))?(/log)?",
            parts.path,
        )
        if match is None:
            return 404, "404 page not found"
        namespace, kind, name, log = match.groups()
        verb = VERBS.get((method, name is None), "list")
        if verb not in NEEDED[f"{kind}/log" if log else kind]:
            return said(403, "Forbidden", f"{kind} is forbidden: the account cannot {verb} it")
        query = {key: each[0] for key, each in parse_qs(parts.query).items()}
        if log:
            return 200, self.logs.get(name, "")
        if name is None and method == "GET":
            return self._list(kind, namespace, query)
        if method == "POST":
            return self._create(kind, namespace, body)
        found = self.objects.get((kind, namespace, name))
        if found is None:
            return said(404, "NotFound", f'{kind} "{name}" not found', name)
        match method:
            case "GET":
                return 200, found
            case "PUT":
                kept = {**found["metadata"], **body["metadata"]}
                return self._update(found, {**body, "metadata": kept})
            case "PATCH":
                return self._update(found, _merged(found, body))
        return self._delete((kind, namespace, name), found, body or {})

    def _list(self, kind: str, namespace: str, query: dict[str, str]) -> tuple[int, Any]:
        asked = dict(each.split("=") for each in query.get("labelSelector", "").split(",") if each)
        found = [
            each
            for (its, where, _), each in sorted(self.objects.items())
            if (its, where) == (kind, namespace)
            and asked.items() <= each["metadata"].get("labels", {}).items()
        ]
        at, size = int(query.get("continue", 0)), min(int(query.get("limit", 500)), self.page)
        if at and self.old:
            self.old -= 1
            return said(410, "Expired", "The provided continue parameter is too old")
        left = {"continue": str(at + size)} if at + size < len(found) else {}
        return 200, {"kind": "List", "metadata": left, "items": found[at : at + size]}

    def _create(self, kind: str, namespace: str, body: Any) -> tuple[int, Any]:
        meta = body["metadata"]
        if namespace not in self.namespaces:
            return said(404, "NotFound", f'namespaces "{namespace}" not found', namespace)
        if (kind, namespace, meta["name"]) in self.objects:
            text = f'{kind} "{meta["name"]}" already exists'
            return said(409, "AlreadyExists", text, meta["name"])
        made = deepcopy(body)
        if kind == "rayjobs":
            refused = self._invalid(made) or _denied(made)
            if refused is not None:
                return refused
            made["status"] = {}
        for name, text in made.pop("stringData", {}).items():
            made.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()
        made["metadata"] |= {"namespace": namespace, "generation": 1, "creationTimestamp": NOW}
        made["metadata"]["uid"] = f"uid-{meta['name']}-{self._version}"
        self.objects[kind, namespace, meta["name"]] = made
        return 201, self._stamped(made)

    def _update(self, found: Any, new: Any) -> tuple[int, Any]:
        version = new["metadata"].get("resourceVersion")
        if version != found["metadata"]["resourceVersion"]:
            return said(409, "Conflict", "the object has been modified", found["metadata"]["name"])
        if new.get("kind") == "RayJob":
            queues = [each["metadata"].get("labels", {}).get(QUEUE) for each in (found, new)]
            refused = self._invalid(new) or _denied(new)
            if not found["spec"]["suspend"] and queues[0] != queues[1]:
                refused = said(403, "Forbidden", f"{WEBHOOK}: {QUEUE}: field is immutable")
            if refused is not None:
                return refused
        for name, text in new.pop("stringData", {}).items():
            new.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()
        found.clear()
        found.update(deepcopy(new))
        return 200, self._stamped(found)

    def _delete(self, key: Key, found: Any, options: Any) -> tuple[int, Any]:
        finalizers = found["metadata"].setdefault("finalizers", [])
        if options.get("propagationPolicy") == "Foreground" and FOREGROUND not in finalizers:
            finalizers.append(FOREGROUND)
        found["metadata"].setdefault("deletionTimestamp", NOW)
        if not finalizers:
            self._gone(key)
        return 200, self._stamped(found)

    def _gone(self, key: Key) -> None:
        owner = self.objects.pop(key)["metadata"]["uid"]
        for other, each in list(self.objects.items()):
            owners = each["metadata"].get("ownerReferences", ())
            if any(one["uid"] == owner for one in owners):
                del self.objects[other]

    def _invalid(self, job: Any) -> tuple[int, Any] | None:
        wrong = [f"spec.{each}" for each in sorted(job["spec"].keys() - SPEC)]
        if self.schema is not None:
            stated = {each: job[each] for each in job if each != "status"}
            errors = jsonschema.Draft202012Validator(self.schema).iter_errors(stated)
            wrong += [f"{each.json_path}: {each.message}" for each in errors]
        if not wrong:
            return None
        return said(422, "Invalid", f'RayJob "{job["metadata"]["name"]}" is invalid: {wrong[0]}')

    def _stamped(self, found: Any) -> Any:
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        return deepcopy(found)

    # What happens on the cluster

    def jobs(self) -> list[Any]:
        return [each for (kind, _, _), each in self.objects.items() if kind == "rayjobs"]

    def tick(self) -> None:
        """Each operator looks at each RayJob once."""
        with self.lock:
            for each in self.jobs():
                self._kuberay(each)
            self._kueue()
            for each in [*self.objects.values()]:
                self._stamped(each)

    def settle(self) -> None:
        for _ in range(6):
            self.tick()

    def _kuberay(self, job: Any) -> None:
        meta, spec, status = job["metadata"], job["spec"], job["status"]
        at, work = status.get("jobDeploymentStatus", ""), self.work.get(meta["uid"])
        finalizers = meta.setdefault("finalizers", [])
        if "deletionTimestamp" in meta:
            if STOP_JOB in finalizers:
                finalizers.remove(STOP_JOB)
            # Then the garbage collector: the cluster, its pods with their hooks, and the job.
            if self._pods_end(meta["uid"]) and FOREGROUND in finalizers:
                finalizers.remove(FOREGROUND)
            if not finalizers:
                self._gone(("rayjobs", meta["namespace"], meta["name"]))
            return
        match at:
            case "":
                if STOP_JOB not in finalizers:
                    finalizers.append(STOP_JOB)
                cluster = f"{meta['name']}-{meta['generation']:05}"
                status |= {"jobId": spec["jobId"], "rayClusterName": cluster, "startTime": NOW}
                status |= {"jobStatus": "", "jobDeploymentStatus": "Initializing"}
            case "Initializing" if spec["suspend"]:
                status["jobDeploymentStatus"] = "Suspending"
            case "Initializing" if self.starts:
                secret = self.objects.get(("secrets", meta["namespace"], meta["name"]))
                if secret is not None:  # or the kubelet waits for it
                    files = {name: base64.b64decode(each) for name, each in secret["data"].items()}
                    self.ran.append((meta["name"], meta["uid"]))
                    self.work[meta["uid"]] = self.run(job, files)
                    status |= {"jobDeploymentStatus": "Running", "jobStatus": "PENDING"}
                    status["rayClusterStatus"] = {"state": "ready", "head": {"podIP": "10.0.0.7"}}
            case "Running" if spec["suspend"]:
                status["jobDeploymentStatus"] = "Suspending"
            case "Running":
                assert work is not None
                self._follow(status, work)
            case "Suspending":
                if self._pods_end(meta["uid"]):
                    status.clear()
                    status["jobDeploymentStatus"] = "Suspended"
            case "Suspended" if not spec["suspend"]:
                status["jobDeploymentStatus"] = ""

    def _follow(self, status: Any, work: Work) -> None:
        code = work.code
        if code is None:
            status["jobStatus"] = "RUNNING"
        elif code == 0:
            status |= {"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete", "endTime": NOW}
        else:
            # Ray's words: dashboard/modules/job/job_supervisor.py.
            tail = f", last available logs (truncated to 20,000 chars):\n{work.said}"
            said = f"Job entrypoint command failed with exit code {code}"
            said += tail if work.said else ". No logs available."
            status |= {"jobStatus": "FAILED", "jobDeploymentStatus": "Failed", "endTime": NOW}
            status |= {"reason": "AppFailed", "message": said}

    def _pods_end(self, uid: str) -> bool:
        """Pods are told to end, and their hooks let a job commit; whether they are gone."""
        work = self.work.get(uid)
        if work is not None and work.code is None:
            work.stop()
        if work is not None and work.code is None:
            return False
        self.work.pop(uid, None)
        return True

    def fail(self, job: str, reason: str, message: str) -> None:
        """KubeRay gives a job up, with its reason and its words."""
        [found] = [each for each in self.jobs() if each["metadata"]["name"] == job]
        found["status"] |= {"jobDeploymentStatus": "Failed", "reason": reason, "message": message}

    def _kueue(self) -> None:
        waits, holds = [], []
        for job in self.jobs():
            meta = job["metadata"]
            if QUEUE not in meta.get("labels", {}) or "deletionTimestamp" in meta:
                continue
            workload = self._workload(job)
            if job["status"].get("jobDeploymentStatus") in ("Complete", "Failed"):
                continue
            if _is(workload, "Admitted"):
                holds.append((job, workload))
            elif job["spec"]["suspend"] and job["status"].get("jobDeploymentStatus") == "Suspended":
                waits.append((job, workload))
        waits.sort(key=lambda each: -_priority(each[0]))
        for job, workload in waits:
            free = self.room - sum(_pods(each) for each, _ in holds)
            lower = [each for each in holds if _priority(each[0]) < _priority(job)]
            if _pods(job) <= free:
                job["spec"]["suspend"] = False
                text = "Quota reserved in ClusterQueue q"
                _let(workload, "QuotaReserved", True, "QuotaReserved", text)
                _let(workload, "Admitted", True, "Admitted", "The workload is admitted")
                _let(workload, "Evicted", False, "QuotaReserved", "Previously: Preempted")
                holds.append((job, workload))
            elif lower:
                uid = job["metadata"]["uid"]
                why = f"Preempted to accommodate a workload (UID: {uid}, JobUID: {uid}) due to "
                why += "prioritization in the ClusterQueue"
                self.evict(lower[-1][0]["metadata"]["name"], "Preempted", why)
                return
            else:
                why = "couldn't assign flavors to pod set workers: insufficient unused quota for "
                why += "cpu in flavor default, 1 more needed"
                _let(workload, "QuotaReserved", False, "WaitingForQuota", why)

    def evict(self, job: str, reason: str, message: str) -> None:
        """Kueue takes a job's place: the condition, then the suspension."""
        [found] = [each for each in self.jobs() if each["metadata"]["name"] == job]
        workload = self._workload(found)
        _let(workload, "Evicted", True, reason, message)
        for each in ("Admitted", "QuotaReserved"):
            _let(workload, each, False, reason, message)
        found["spec"]["suspend"] = True

    def _workload(self, job: Any) -> Any:
        meta = job["metadata"]
        key = ("workloads", meta["namespace"], f"rayjob-{meta['name']}-{meta['uid'][-5:]}")
        if key not in self.objects:
            owner = {"uid": meta["uid"], "name": meta["name"], "kind": "RayJob"}
            self.objects[key] = {
                "kind": "Workload",
                "metadata": {
                    "name": key[2],
                    "namespace": key[1],
                    "uid": f"w-{meta['uid']}",
                    "labels": {"kueue.x-k8s.io/job-uid": meta["uid"]},
                    "ownerReferences": [owner],
                },
                "status": {"conditions": []},
            }
        return self.objects[key]


@cache
def _published() -> Any:
    """The schema of RayJobs, as their operator publishes it; None where it is not at hand."""
    folder = os.environ.get("GOVRAY_CRDS")
    return schemas(Path(folder))["RayJob", "ray.io/v1"] if folder else None


WEBHOOK = 'admission webhook "vrayjob.kb.io" denied the request'


def said(status: int, reason: str, message: str, name: str = "") -> tuple[int, Any]:
    """A ``metav1.Status``, as an API server answers."""
    found = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason}
    details = {"details": {"name": name}} if name else {}
    return status, found | {"message": message, "code": status} | details


def _denied(job: Any) -> tuple[int, Any] | None:
    """What Kueue's webhook refuses, and what KubeRay would find fault with."""
    spec = job["spec"]
    if QUEUE in job["metadata"].get("labels", {}) and not spec.get("shutdownAfterJobFinishes"):
        return said(403, "Forbidden", f"{WEBHOOK}: spec.shutdownAfterJobFinishes: Invalid value")
    return None


def _merged(found: Any, change: Any) -> Any:
    """RFC 7396."""
    if not isinstance(change, dict):
        return change
    made = dict(found) if isinstance(found, dict) else {}
    for name, value in change.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = _merged(made.get(name), value)
    return made


def _let(workload: Any, kind: str, true: bool, reason: str, message: str) -> None:
    conditions = workload["status"]["conditions"]
    conditions[:] = [each for each in conditions if each["type"] != kind]
    status = "True" if true else "False"
    conditions.append({"type": kind, "status": status, "reason": reason, "message": message})


def _is(workload: Any, kind: str) -> bool:
    return any(
        each["type"] == kind and each["status"] == "True"
        for each in workload["status"]["conditions"]
    )


def _priority(job: Any) -> int:
    return VALUES[job["metadata"]["labels"][PRIORITY]]


def _pods(job: Any) -> int:
    return sum(each["replicas"] for each in job["spec"]["rayClusterSpec"]["workerGroupSpecs"])


@contextmanager
def kubernetes(
    port: int = 0, tls: ssl.SSLContext | None = None, **settings: Any
) -> Iterator[KubernetesServer]:
    """A server on a port of this machine; 0: a free one."""
    made = KubernetesServer(**settings)

    class Answers(Handler):
        def handle_any(self) -> None:
            data = self.body()
            with made.lock:
                token = self.headers.get("Authorization")
                body = json.loads(data) if data else None
                status, answer = made.answer(self.command, self.path, body, token)
                sent = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.say(sent, status)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

    with web_server(Answers, port, tls) as taken:
        made.address = f"http://127.0.0.1:{taken}"
        yield made
