"""The queue's back end for Kubernetes, over the API server of the tests."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from govray.governance.submission.register_forms import ADDRESS, SECRET
from govray.platform.queue.kubernetes_api import KubernetesApi
from govray.platform.queue.kubernetes_jobs import KubernetesJobs
from govray.platform.queue.placement import Slot
from govray.platform.queue.ray_job import Pods, Tenant
from govray.platform.store.tables import Submission
from govray.storage.place import Place
from tests.support.kubernetes_server import TOKEN, KubernetesServer

TENANTS = {
    "a": Tenant(namespace="ml-a", user=20001, queue="a"),
    "b": Tenant(namespace="ml-b", user=20002, queue="b"),
}
IMAGE = "registry.example.com/govray@sha256:" + "1" * 64
PODS = Pods(image=IMAGE, ray_version="2.60.0")
SLOT = Slot(labels={"govray.dev/pool": "cpu"}, cpus=7, gpus=0, memory=28 << 30)


class Told:
    """A register that takes every attempt, with a secret of its own for each time it is told."""

    def __init__(self) -> None:
        self.times = 0

    def variables(self, row: Submission, environment: Any, isolation: str) -> dict[str, str]:
        self.times += 1
        secret = hashlib.sha256(f"{row.job} {self.times}".encode()).hexdigest()
        return {ADDRESS: "http://register", SECRET: secret}


def jobs_on(server: KubernetesServer, storage: Place, **more: Any) -> KubernetesJobs:
    """The back end of one process."""
    api = KubernetesApi(server.address, token=lambda: TOKEN, ca_file=None)
    given: dict[str, Any] = {
        "tenants": TENANTS,
        "pods": PODS,
        "slots": {"default": SLOT},
        "register": Told(),
        "working_dir": Path("/home/ray"),
    }
    return KubernetesJobs(api, storage, **given | more)
