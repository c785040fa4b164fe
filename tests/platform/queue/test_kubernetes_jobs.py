"""Submissions on Kubernetes, over an API server that does what KubeRay and Kueue do."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Engine

from govray.errors import UsageError
from govray.governance.submission.register_forms import SECRET
from govray.platform.queue import kubernetes_jobs
from govray.platform.queue.job import JobRefused, JobState, Unreachable
from govray.platform.queue.ray_job import Pods
from govray.platform.queue.settings import read_queue
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import QueueEntry
from tests.support.kubernetes_server import (
    KubernetesServer,
    Pretended,
    kubernetes,
    said,
)
from tests.support.on_kubernetes import IMAGE, PODS, SLOT, TENANTS, Told, jobs_on
from tests.support.queued import Queued

S, J = ExperimentState, JobState
HOSTILE = "$(id) `id` \"'; namespace: kube-system #\n\x00"[:-1]


@pytest.fixture
def server() -> Iterator[KubernetesServer]:
    with kubernetes() as made:
        yield made


@pytest.fixture
def queue(server: KubernetesServer, store: Engine, tmp_path: Path) -> Queued:
    return Queued(store, cluster=cast(Any, jobs_on(server, tmp_path)))


def row(**more: Any) -> QueueEntry:
    given: dict[str, Any] = {
        "id": "s-20261124-090000-0a1b2c3d", "job": "s-20261124-090000-0a1b2c3d-1-00112233445566",
        "attempt": 1, "kind": "train", "name": "gpt", "project": "a", "user": "ada",
        "pool": "default", "priority": 0, "slots": 2, "config": "a: 1", "state": S.RUNNING,
        "submitted": "2026-11-24T09:00:00Z",
    }  # fmt: skip
    return QueueEntry(**given | more)


def only(server: KubernetesServer) -> Any:
    [job] = server.jobs()
    return job


def work(server: KubernetesServer) -> Pretended:
    [found] = server.work.values()
    return cast(Pretended, found)


# A start


def test_what_pods_may_is_the_operator_s_and_no_text_of_a_submitter_is_a_command(
    server: KubernetesServer, tmp_path: Path
) -> None:
    pods = PODS.model_copy(
        update={
            "pod": {"serviceAccountName": "other", "volumes": [{"name": "shared", "emptyDir": {}}]},
            "container": {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]},
        }
    )
    hostile = row(name="n", user=HOSTILE, config=HOSTILE, kind="train")
    jobs_on(server, tmp_path, pods=pods, runtime_env=lambda *_: {
        "env_vars": {"A": HOSTILE}, "working_dir": "/elsewhere"
    }).start(hostile)  # fmt: skip

    job = only(server)
    assert job["metadata"]["namespace"] == "ml-a"
    spec = job["spec"]
    assert spec["entrypoint"] == "python -m govray.platform.queue.in_pod start"
    assert spec["submissionMode"] == "HTTPMode"  # in others a shell reads Ray's environment
    assert json.loads(spec["runtimeEnvYAML"])["env_vars"]["A"] == HOSTILE
    assert "working_dir" not in spec["runtimeEnvYAML"]
    cluster = spec["rayClusterSpec"]
    [workers] = cluster["workerGroupSpecs"]
    assert (workers["replicas"], workers["labels"]) == (2, {"govray.dev/pool": "cpu"})
    for group, reads in ((cluster["headGroupSpec"], True), (workers, False)):
        pod = group["template"]["spec"]
        assert (pod["serviceAccountName"], pod["securityContext"]["runAsUser"]) == (
            "govray-jobs", 20001,
        )  # fmt: skip
        assert pod["automountServiceAccountToken"] is False
        assert pod["containers"][0]["image"] == IMAGE
        assert ("secret" in str(pod["volumes"])) == reads
        assert HOSTILE not in str(group)
    files = server.objects["secrets", "ml-a", str(hostile.job)]["data"]
    assert base64.b64decode(files["govray-submission.yaml"]).decode() == HOSTILE


def test_a_task_runs_on_the_worker_and_a_driver_on_the_head(
    server: KubernetesServer, tmp_path: Path
) -> None:
    jobs_on(server, tmp_path).start(row(kind="command", slots=1, config="{}"))
    spec = only(server)["spec"]
    cluster = spec["rayClusterSpec"]
    assert "secretName" in str(cluster["workerGroupSpecs"])
    assert "secretName" not in str(cluster["headGroupSpec"])
    assert (spec["entrypointNumCpus"], spec["entrypointNumGpus"]) == (7, 0)


def test_an_experiment_narrows_the_nodes_of_its_workers_down_and_leads_them_nowhere_else(
    server: KubernetesServer, tmp_path: Path
) -> None:
    slot = replace(SLOT, accelerator_type="A100")
    labels = {"market-type": "spot", "govray.dev/pool": "another"}
    jobs_on(
        server, tmp_path, slots={"default": slot}, asked=lambda _: (labels, "A100", 1 << 30)
    ).start(row())
    cluster = only(server)["spec"]["rayClusterSpec"]
    [workers] = cluster["workerGroupSpecs"]
    narrowed = {"market-type": "spot", "govray.dev/pool": "cpu"}
    assert workers["labels"] == workers["template"]["spec"]["nodeSelector"] == narrowed
    head = cluster["headGroupSpec"]["template"]["spec"]["nodeSelector"]
    assert head == {"govray.dev/pool": "head"}
    [pod] = workers["template"]["spec"]["containers"]
    assert pod["resources"]["requests"]["memory"] == pod["resources"]["limits"]["memory"]
    assert pod["resources"]["limits"]["memory"] == str(1 << 30)
    with pytest.raises(JobRefused, match="pool 'default' has no GPU 'H100'"):
        jobs_on(server, tmp_path, asked=lambda _: ({}, "H100", None)).start(row())
    with pytest.raises(JobRefused, match="a slot of pool 'default' has 30064771072"):
        jobs_on(server, tmp_path, asked=lambda _: ({}, None, 1 << 40)).start(row())


@pytest.mark.parametrize("asked", [None, "an image"])
def test_a_submitter_chooses_neither_namespace_nor_image(
    server: KubernetesServer, tmp_path: Path, asked: str | None
) -> None:
    env = {} if asked is None else {"image_uri": "evil@sha256:" + "0" * 64}
    jobs = jobs_on(server, tmp_path, runtime_env=lambda *_: dict(env))
    with pytest.raises(JobRefused, match="no namespace" if asked is None else "image"):
        jobs.start(row(project="c" if asked is None else "a"))
    assert server.jobs() == []


class Ended(BaseException):
    """The process of the queue is gone."""


def test_a_process_that_ends_at_any_request_leaves_one_job_and_its_secret(
    server: KubernetesServer, store: Engine, tmp_path: Path
) -> None:
    register = Told()
    for last in range(1, 12):
        server.__post_init__()
        server.objects.clear()
        server.work.clear()
        server.ran.clear()
        queue = Queued(store, cluster=cast(Any, jobs_on(server, tmp_path, register=register)))
        queue.wait(1000 * last)  # the one before holds no lease any more
        id = queue.put()
        cluster = cast(Any, queue.cluster)
        exchange, left = cluster._api._exchange, [last]

        def ends(*words: Any, exchange: Any = exchange, left: list[int] = left) -> Any:
            answer = exchange(*words)
            left[0] -= 1
            if left[0] == 0:
                raise Ended
            return answer

        cluster._api._exchange = ends
        died = False
        try:
            queue.passed()
        except Ended:
            died = True
        server.settle()
        cluster._api._exchange = exchange
        queue.wait(60)
        queue.process = queue.reconciler()
        for _ in range(3):
            queue.passed()
            server.settle()
        queue.passed()
        assert (queue.state(id), queue.row(id).attempt) == (S.RUNNING, 1)
        job = only(server)
        assert [name for name, _ in server.ran] == [job["metadata"]["name"]]
        secret = server.objects["secrets", "ml-a", job["metadata"]["name"]]
        assert json.loads(base64.b64decode(secret["data"]["order.json"]))["variables"][SECRET]
        queue.ask(id, "stop")
        queue.passed()
        server.settle()
        queue.passed()
        assert queue.state(id) is S.STOPPED
        assert server.objects == {}
        if not died:
            assert last > 5  # two lists, the job, its secret, its queue
            return
    raise AssertionError("a start takes more requests than were tried")


# What the operators say


Shown = tuple[dict[str, Any], JobState, int | None, str]
FAILED = {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED"}
RAY_SAID = (
    "Job entrypoint command failed with exit code {}, last available logs "
    "(truncated to 20,000 chars):\n"
)
STATUSES: dict[str, Shown] = {
    "new": ({}, J.WAITING, None, ""),
    "initializing": ({"jobDeploymentStatus": "Initializing", "jobStatus": ""}, J.WAITING, None, ""),
    "pending": ({"jobDeploymentStatus": "Running", "jobStatus": "PENDING"}, J.WAITING, None, ""),
    "running": ({"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}, J.RUNNING, None, ""),
    "done": ({"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}, J.SUCCEEDED, 0, ""),
    "stopped": ({"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"}, J.STOPPED, 0, ""),
    "refused": (FAILED | {"reason": "AppFailed", "message": RAY_SAID.format(2) + "govray: no"},
                J.FAILED, 2, "govray: no"),
    "killed": (FAILED | {"reason": "AppFailed", "message": RAY_SAID.format(-9)},
               J.FAILED, -9, "-9"),
    "never started": (FAILED | {"reason": "PreRunningDeadlineExceeded", "message": "The RayJob"},
                      J.FAILED, None, "PreRunningDeadlineExceeded: The RayJob"),
    "head gone": (FAILED | {"reason": "JobStatusCheckTimeoutExceeded", "message": ""},
                  J.FAILED, None, "JobStatusCheckTimeoutExceeded"),
    "invalid": ({"jobDeploymentStatus": "ValidationFailed", "message": "The RayJob spec is"},
                J.FAILED, 2, "govray: KubeRay refuses the job"),
    # A job's own words are not Ray's: its exit code is none.
    "forged": (FAILED | {"reason": "X", "message": "!" + RAY_SAID.format(0)},
               J.FAILED, None, "X: !"),
}  # fmt: skip


@pytest.mark.parametrize("name", STATUSES)
def test_what_kuberay_says_of_a_job(name: str, server: KubernetesServer, tmp_path: Path) -> None:
    status, state, code, message = STATUSES[name]
    jobs, asked = jobs_on(server, tmp_path), row()
    jobs.start(asked)
    job = only(server)
    job["spec"]["suspend"] = False
    job["status"] = status
    found = jobs.look(str(asked.job))
    assert found is not None
    assert (found.state, found.code, found.submission) == (state, code, asked.id)
    assert message in found.message
    assert ([each.name for each in jobs.running()] == [asked.job]) != found.ended


def test_where_kuberay_has_no_words_the_head_s_log_has(
    server: KubernetesServer, tmp_path: Path
) -> None:
    jobs, asked = jobs_on(server, tmp_path), row()
    jobs.start(asked)
    only(server)["status"] = {"jobDeploymentStatus": "Failed", "rayClusterName": "c"}
    labels = {"ray.io/cluster": "c", "ray.io/node-type": "head"}
    server.objects["pods", "ml-a", "c-head"] = {"metadata": {"name": "c-head", "labels": labels}}
    server.logs["c-head"] = "out of memory"
    found = jobs.look(str(asked.job))
    assert found is not None
    assert found.message == "out of memory"


def test_what_is_proxied_is_the_pod_that_runs_the_command(
    server: KubernetesServer, tmp_path: Path
) -> None:
    for kind, node in (("train", "10.0.0.7"), ("notebook", "10.0.0.9")):
        server.objects.clear()
        jobs, asked = jobs_on(server, tmp_path), row(kind=kind, slots=1)
        jobs.start(asked)
        server.settle()
        server.settle()
        cluster = only(server)["status"]["rayClusterName"]
        labels = {"ray.io/cluster": cluster, "ray.io/node-type": "worker"}
        server.objects["pods", "ml-a", "w"] = {
            "metadata": {"name": "w", "labels": labels}, "status": {"podIP": "10.0.0.9"},
        }  # fmt: skip
        found = jobs.look(str(asked.job))
        assert found is not None
        assert found.node == node


def test_why_kueue_lets_a_job_wait_is_shown_until_it_runs(
    server: KubernetesServer, queue: Queued
) -> None:
    server.room = 2
    first = queue.put()
    second = queue.put()
    for _ in range(2):
        queue.passed()
        server.settle()
    queue.passed()
    assert queue.row(first).why is None
    assert queue.row(second).state is S.RUNNING  # in the queue's eyes; Kueue has other room
    said = str(queue.row(second).why)
    assert said.startswith("it waits in Kueue: couldn't assign flavors to pod set workers: ")
    queue.ask(first, "stop")
    for _ in range(3):
        queue.passed()
        server.settle()
    queue.passed()
    assert (queue.row(second).why, queue.row(second).node) == (None, "10.0.0.7")


# Stops, and what Kueue takes


def test_a_stop_waits_for_the_pods_and_a_job_that_ended_meanwhile_is_done(
    server: KubernetesServer, queue: Queued
) -> None:
    server.run = lambda job, files: Pretended(stops=False)
    id, other = queue.put(), queue.put()
    queue.passed()
    server.settle()
    queue.ask(id, "stop")
    for _ in range(3):
        queue.passed()
        server.settle()
    assert queue.state(id) is S.STOPPING  # it commits still
    [first, second] = server.work.values()
    cast(Pretended, first).code = 75
    cast(Pretended, second).code = 0
    server.settle()
    queue.passed()
    queue.ask(other, "kill") if queue.state(other) is S.RUNNING else None
    queue.passed()
    assert (queue.state(id), queue.row(id).why) == (S.STOPPED, None)
    assert queue.state(other) is S.COMPLETED


@pytest.mark.parametrize("told", [True, False])
def test_what_kueue_takes_goes_back_to_the_line_as_another_attempt(
    server: KubernetesServer, queue: Queued, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not told:  # the control: nobody deletes it, and Kueue starts the same attempt again
        monkeypatch.setattr(kubernetes_jobs.KubernetesJobs, "stop", lambda self, job: None)
    id = queue.put()
    queue.passed()
    server.settle()
    queue.passed()
    server.evict(queue.job(id), "Preempted", "Preempted to accommodate a workload (UID: u)")
    server.tick()
    queue.passed()
    assert queue.state(id) is S.PREEMPTING
    server.settle()
    queue.passed()
    server.settle()
    queue.passed()
    if told:
        row = queue.row(id)
        assert (row.state, row.attempt, row.failures) == (S.RUNNING, 2, 0)
        assert len({name for name, _ in server.ran}) == 2
    else:
        assert [name for name, _ in server.ran] == [queue.job(id)] * 2


def test_a_higher_priority_of_kueue_s_own_preempts_as_the_queue_s(
    server: KubernetesServer, queue: Queued
) -> None:
    """Kueue has less room than the queue thinks: another's job holds it."""
    server.room = 2
    low = queue.put()
    queue.passed()
    server.settle()
    high = queue.put(priority=5)
    states = []
    for _ in range(5):
        queue.passed()
        server.settle()
        states.append(queue.state(low))
    assert S.PREEMPTING in states
    assert server.ran[-1][0] == queue.job(high)
    assert queue.state(high) is S.RUNNING


@pytest.mark.parametrize("by", ["KubeRay", "Kueue"])
def test_pods_that_never_start_count_as_deaths(
    server: KubernetesServer, queue: Queued, by: str
) -> None:
    server.starts = False
    id = queue.put()
    for _ in range(40):
        queue.passed()
        server.settle()
        if queue.state(id) is S.RUNNING and server.jobs():
            [job] = [each for each in server.jobs() if each["metadata"]["name"] == queue.job(id)]
            if "deletionTimestamp" not in job["metadata"]:
                if by == "KubeRay":
                    server.fail(queue.job(id), "PreRunningDeadlineExceeded", "it has passed 1800")
                else:
                    why = "Exceeded the PodsReady timeout ml-a/rayjob"
                    server.evict(queue.job(id), "PodsReadyTimeout", why)
        queue.wait(61)
        if queue.state(id) is S.ERROR:
            break
    assert queue.row(id).why is not None
    assert "3 tries ended" in str(queue.row(id).why)
    assert server.ran == []


def test_a_job_that_nobody_follows_is_deleted_and_what_ended_long_ago_forgotten(
    server: KubernetesServer, queue: Queued, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = queue.put()
    queue.passed()
    server.settle()
    work(server).code = 0
    server.settle()
    queue.passed()
    assert queue.state(id) is S.COMPLETED
    queue.wait(61)
    monkeypatch.setattr(kubernetes_jobs, "KEPT", timedelta(days=10**5))
    queue.passed()
    assert len(server.jobs()) == 1
    monkeypatch.setattr(kubernetes_jobs, "KEPT", timedelta(0))
    queue.wait(61)
    queue.passed()
    server.settle()
    assert server.objects == {}


# Answers that say nothing, or no


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (said(403, "Forbidden", 'rayjobs.ray.io is forbidden: User "q" cannot'), Unreachable),
        (said(403, "Forbidden", 'admission webhook "x" denied the request: no'), JobRefused),
        (said(422, "Invalid", "RayJob is invalid: spec"), JobRefused),
        (said(409, "Conflict", "the object has been modified"), Unreachable),
        (said(429, "TooManyRequests", "wait"), Unreachable),
        (said(500, "InternalError", "no"), Unreachable),
        (said(404, "NotFound", 'namespaces "ml-a" not found', "ml-a"), Unreachable),
        ((200, "<html>"), Unreachable),
    ],
)
def test_what_an_answer_to_a_start_means(
    answer: tuple[int, Any], error: type[Exception], server: KubernetesServer, tmp_path: Path
) -> None:
    server.faults = [answer]
    with pytest.raises(error):
        jobs_on(server, tmp_path).start(row())


@pytest.mark.parametrize("body", ["404 page not found", {"kind": "Status", "reason": "NotFound"}])
def test_from_a_404_that_names_nothing_nothing_follows(
    server: KubernetesServer, queue: Queued, body: Any
) -> None:
    id = queue.put()
    queue.passed()
    server.settle()
    queue.wait(300)
    server.faults = [(404, body)]
    assert queue.passed().unreachable is not None
    assert queue.state(id) is S.RUNNING
    server.objects.clear()  # the control: the server says that it has none
    queue.passed()
    assert queue.row(id).attempt == 2


def test_a_list_that_grows_too_old_is_begun_again(server: KubernetesServer, tmp_path: Path) -> None:
    server.page = 1
    jobs = jobs_on(server, tmp_path)
    names = {f"s-20261124-090000-0a1b2c3d-{each}-00112233445566" for each in range(3)}
    for each in names:
        jobs.start(row(job=each))
    server.old = 2
    assert {each.name for each in jobs.running()} == names
    server.old = 3
    with pytest.raises(Unreachable, match="too old"):
        jobs.running()


def test_the_token_is_read_for_each_request_and_nobody_who_is_wrong_gets_in(
    server: KubernetesServer, tmp_path: Path
) -> None:
    jobs = jobs_on(server, tmp_path)
    jobs.look("s-1")
    cast(Any, jobs)._api._token = lambda: "of yesterday"
    with pytest.raises(Unreachable, match="401"):
        jobs.look("s-1")


# queue.yaml

FILE = f"""\
address: https://kubernetes.default.svc
storage: /shared/runs
store: sqlite:///govray.db
pools:
  default: {{slots: 8, cpus: 7, memory_gb: 28, labels: {{govray.dev/pool: cpu}}}}
attestor: {{url: "https://attestor:8686", token_file: /etc/govray/attestor-token}}
kubernetes:
  image: {IMAGE}
  ray_version: 2.60.0
  projects:
    a: {{namespace: ml-a, user: 20001, queue: a}}
    b: {{namespace: ml-b, user: 20002, queue: b}}
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "", None),
        ("namespace: ml-b", "namespace: ml-a", "one namespace"),
        ("user: 20002", "user: 20001", "one user"),
        ("user: 20002", "user: 0", "user"),
        ("attestor: {", "others: {share: 1}\n#", "no attestor"),
        ("memory_gb: 28, ", "", "pools.default need cpus and memory_gb"),
        ("  ray_version", "  head: {memory_gb: 0}\n  ray_version", "kubernetes.head need"),
        ("@sha256:" + "1" * 64, ":latest", "image"),
        ("store:", "working_dir: here\nstore:", "folder of the image"),
    ],
)
def test_the_file_keeps_projects_apart(
    tmp_path: Path, old: str, new: str, says: str | None
) -> None:
    (path := tmp_path / "queue.yaml").write_text(FILE.replace(old, new) if old else FILE)
    if says is not None:
        with pytest.raises(UsageError, match=says):
            read_queue(path)
        return
    queue = read_queue(path)
    assert queue.kubernetes is not None
    assert queue.kubernetes.projects == TENANTS
    assert Pods(**queue.kubernetes.model_dump(include=set(Pods.model_fields))) == PODS
