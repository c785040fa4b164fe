"""The RayJob of an attempt, and the secret that its pods read, from the operator's settings.

Namespace, account, image, user and volumes are the operator's. The submitter's words stand in the
secret alone, and in Ray's environment. KubeRay hands that one on as JSON over HTTP (`HTTPMode`). In
its other modes it becomes the text of a shell, between double quotes (v1.7.0, common/job.go,
BuildJobSubmitCommand).

Kueue admits the job: it unsuspends it once the queue of its project has room. Until the label of
that queue is there, nobody touches the job.

Sources: KubeRay v1.7.0, apis/ray/v1/rayjob_types.go, raycluster_types.go; Kueue v0.19.2,
pkg/controller/constants/constants.go, pkg/controller/jobs/rayjob/rayjob_webhook.go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from govray.platform.queue import in_pod
from govray.platform.queue.job_folder import metadata
from govray.platform.queue.placement import Slot
from govray.platform.store.tables import QueueEntry
from govray.platform.tasks.task_file import KINDS

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
OURS = "app.kubernetes.io/managed-by=govray-queue"
"""Of each RayJob that the queue makes."""
SUBMISSION = "govray.dev/submission"
KIND = "govray.dev/kind"

PRIORITIES = ("low", "normal", "high")
"""The chart's classes: below 0, 0, and above."""

_Dns = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")]
_Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_./-]{0,61}[A-Za-z0-9])?$")]


class FileSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Room(FileSection):
    """What a node has for one slot of a pool."""

    labels: dict[_Label, _Label] = Field(
        default_factory=dict, description="Ray's labels of its nodes; all nodes without."
    )
    cpus: float = Field(default=1.0, ge=0, le=100_000, description="CPUs that a task gets.")
    gpus: float = Field(default=0.0, ge=0, le=1000, description="GPUs that a task gets.")
    memory_gb: float = Field(default=0.0, ge=0, le=1e6, description="Memory that a task gets.")
    accelerator_type: str | None = Field(
        default=None, description="Ray's name of its nodes' GPUs: on Kubernetes runs get no other."
    )

    def slot(self) -> Slot:
        memory = round(self.memory_gb * 1e9)
        given = self.model_dump(include={"labels", "cpus", "gpus", "accelerator_type"})
        return Slot(memory=memory, **given)


class Tenant(FileSection):
    """What a project has of its own on Kubernetes."""

    namespace: _Dns = Field(description="Where its jobs run, and nobody else's.")
    user: int = Field(ge=1000, lt=2**31, description="The UID of its pods, and nobody else's.")
    queue: _Dns = Field(description="Its LocalQueue of Kueue, in that namespace.")
    service_account: _Dns = Field(default="govray-jobs", description="The account of its pods.")


class Pods(FileSection):
    """What pods are made of. Mappings are Kubernetes' own, and go into each pod as they are."""

    image: str = Field(
        pattern=r"^[a-z0-9][^\s@]{0,254}@sha256:[0-9a-f]{64}$",
        description="The image of deploy/Containerfile, by its digest.",
    )
    ray_version: str = Field(pattern=r"^\d+\.\d+\.\d+$", description="The image's.")
    ray_token_secret: _Dns = Field(
        default="govray-ray-token", description="A secret with the clusters' token: auth_token."
    )
    jobs: str = Field(default="/home/ray/jobs", description="govray's entry points in the image.")
    head: Room = Field(
        default=Room(labels={"govray.dev/pool": "head"}, cpus=2.0, memory_gb=8.0),
        description="What a head gets.",
    )
    pod: dict[str, Any] = Field(default_factory=dict, description="Such as volumes.")
    container: dict[str, Any] = Field(
        default_factory=dict, description="Such as volumeMounts and env."
    )
    grace_s: int = Field(default=60, ge=1, le=3600, description="Seconds that a commit may take.")
    start_s: int = Field(
        default=1800, ge=1, le=86400, description="Seconds from Kueue's word to a job that runs."
    )


def secret(name: str, row: QueueEntry, owner: Mapping[str, Any], files: Mapping[str, bytes]) -> Any:
    """What the attempt's pods read. It goes when its RayJob goes."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "labels": {SUBMISSION: row.id},
            "ownerReferences": [
                {
                    "apiVersion": owner["apiVersion"],
                    "kind": owner["kind"],
                    "name": name,
                    "uid": owner["metadata"]["uid"],
                }
            ],
        },
        "type": "Opaque",
        "stringData": {each: data.decode() for each, data in files.items()},
    }


def ray_job(
    name: str,
    row: QueueEntry,
    tenant: Tenant,
    pods: Pods,
    slot: Slot,
    environment: Mapping[str, Any],
) -> Any:
    """The RayJob of an entry's attempt: a cluster of its own, with a pod for each slot.

    A run's driver is on the head, which has no CPUs for Ray. A task is on the one worker.
    """
    task = row.kind in KINDS
    head = pods.head.slot()
    priority = PRIORITIES[1 + (row.priority > 0) - (row.priority < 0)]
    key, _, value = OURS.partition("=")
    spec: dict[str, Any] = {
        "entrypoint": in_pod.ENTRYPOINT,
        "jobId": name,
        "submissionMode": "HTTPMode",
        "backoffLimit": 0,  # the queue starts another attempt, with a secret of its own
        "shutdownAfterJobFinishes": True,
        "suspend": True,
        "preRunningDeadlineSeconds": pods.start_s,
        "metadata": metadata(row),
        "runtimeEnvYAML": json.dumps(environment),
        "rayClusterSpec": {
            "rayVersion": pods.ray_version,
            "authOptions": {"mode": "token", "secretName": pods.ray_token_secret},
            "headGroupSpec": {
                "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},  # noqa: S104
                "template": _template("ray-head", name, tenant, pods, head, reads=not task),
            },
            "workerGroupSpecs": [
                {
                    "groupName": "workers",
                    "replicas": row.slots,
                    "minReplicas": row.slots,
                    "maxReplicas": row.slots,
                    "labels": dict(slot.labels),
                    "rayStartParams": {},
                    "template": _template("ray-worker", name, tenant, pods, slot, reads=task),
                }
            ],
        },
    }
    if task:
        spec |= {"entrypointNumCpus": slot.cpus, "entrypointNumGpus": slot.gpus}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": name,
            "namespace": tenant.namespace,
            "labels": {key: value, SUBMISSION: row.id, KIND: row.kind, PRIORITY: priority},
        },
        "spec": spec,
    }


def _template(
    container: str, name: str, tenant: Tenant, pods: Pods, slot: Slot, *, reads: bool
) -> Any:
    """A pod. What is said here comes before what the operator's mappings say.

    Args:
        reads: Whether the job's command runs in it, which reads the attempt's secret.
    """
    head = container == "ray-head"
    memory = str(slot.memory)
    limits = {"memory": memory} | ({"nvidia.com/gpu": f"{slot.gpus:g}"} if slot.gpus else {})
    mounts = [*pods.container.get("volumeMounts", ())]
    volumes = [*pods.pod.get("volumes", ())]
    environment = [*pods.container.get("env", ()), {"name": "HOME", "value": "/tmp"}]  # noqa: S108
    if head:
        wait = {"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": str(pods.grace_s)}
        environment.append(wait)
    if reads:
        mounts.append({"name": "job", "mountPath": str(in_pod.FOLDER), "readOnly": True})
        volumes.append({"name": "job", "secret": {"secretName": name, "defaultMode": 0o444}})
    return {
        "metadata": {"labels": {"govray.dev/job": name}},
        "spec": {
            **pods.pod,
            "serviceAccountName": tenant.service_account,
            "automountServiceAccountToken": False,
            "nodeSelector": dict(slot.labels),
            "securityContext": {
                **pods.pod.get("securityContext", {}),
                "runAsNonRoot": True,
                "runAsUser": tenant.user,
                "runAsGroup": tenant.user,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "terminationGracePeriodSeconds": pods.grace_s + 15,
            "volumes": volumes,
            "containers": [
                {
                    **pods.container,
                    "name": container,
                    "image": pods.image,
                    "env": environment,
                    "volumeMounts": mounts,
                    "lifecycle": {
                        "preStop": {"exec": {"command": [*(in_pod.STOP if head else in_pod.WAIT)]}}
                    },
                    "resources": {
                        "requests": {"cpu": f"{slot.cpus:g}", "memory": memory},
                        "limits": limits,
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }
