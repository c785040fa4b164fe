"""The queue's back end for Kubernetes, over the API server of the tests."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from govray.governance.submission.register_forms import ADDRESS, SECRET
from govray.platform.queue.kubernetes_api import KubernetesApi
from govray.platform.queue.kubernetes_jobs import KubernetesJobs
from govray.platform.queue.placement import Slot
from govray.platform.queue.ray_job import Pods, Tenant
from govray.platform.store.tables import QueueEntry
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

    def variables(self, row: QueueEntry, environment: Any, isolation: str) -> dict[str, str]:
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


class Pod:
    """The job of an attempt as a process of this machine: what its entry point runs."""

    def __init__(self, folder: Path, files: Mapping[str, bytes], environment: Mapping[str, str]):
        (mounted := folder / "job").mkdir(parents=True)
        for name, data in files.items():
            (mounted / name).write_bytes(data)
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(mounted)],
                env=os.environ | {"TMPDIR": str(folder), **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def code(self) -> int | None:
        return self._process.poll()

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")[-4096:]

    def stop(self) -> None:
        self._process.terminate()

    def end(self) -> None:
        """Nothing of it runs any more."""
        self._process.kill()
        self._process.wait()


_START = """
import sys
from pathlib import Path
from govray.platform.queue import in_pod
in_pod.start.__defaults__ = (Path(sys.argv[1]),)
sys.exit(in_pod.main(["start"]))
"""


@contextmanager
def pods(folder: Path, **environment: str) -> Iterator[Callable[[Any, dict[str, bytes]], Pod]]:
    """What runs each job's entry point as a process; all of them end with it."""
    made: list[Pod] = []

    def run(job: Any, files: dict[str, bytes]) -> Pod:
        made.append(Pod(folder / f"{job['metadata']['name']}-{len(made)}", files, environment))
        return made[-1]

    try:
        yield run
    finally:
        for each in made:
            each.end()
