"""A head and worker nodes on this machine, each started again when it ends, as systemd would do."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from ray._private.services import get_node_ip_address

from tests.support.forked_workers import Forked
from tests.support.tree import ROOT

_START = """
import sys
sys.executable = sys.argv.pop(1)
from ray.scripts.scripts import main
main()
"""

PATIENCE_S = 240.0

SETTINGS = {
    "RAY_JOB_STOP_WAIT_TIME_S": "60",
    # A worker node gives up soon on a head that is gone, and joins the next.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    # A busy machine takes its time. But a node whose raylet ends meanwhile waits all of it.
    "RAY_raylet_start_wait_time_s": "60",
    "RAY_agent_register_timeout_ms": "200000",
    "RAY_memory_monitor_refresh_ms": "0",  # each node would count the whole machine's
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
}


class RayNodes:
    """A head without CPUs for work, and ``workers`` nodes of ``cpus`` each; or a head with them.
    ``words``: more of ``ray start`` on the workers' nodes."""

    def __init__(
        self, forked: Forked, *, workers: int, cpus: int, words: Sequence[str] = ()
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets: a short path
        self.port, self.dashboard_port, self._client_port = free_ports(3)
        self.address = f"{get_node_ip_address()}:{self.port}"  # type: ignore[no-untyped-call]
        self.dashboard = f"http://127.0.0.1:{self.dashboard_port}"
        self._python = forked.python
        self._ending = threading.Event()
        self.head = _Unit(self, "head", self._head_words(0 if workers else cpus))
        joining = (f"--address={self.address}", f"--num-cpus={cpus}", *words)
        self.workers = [
            # Each has a folder of its own, as machines have. In one that two share, a node removes
            # the working directory of a job that ended on it, though it still runs on the other.
            _Unit(self, name, [*joining, f"--temp-dir={self.folder / name}"])
            for name in (f"worker-{i}" for i in range(workers))
        ]

    def start(self) -> None:
        """Start all nodes, and wait until Ray Jobs answer."""
        self.head.start()
        self.await_jobs()
        for unit in self.workers:
            unit.start()

    def await_jobs(self) -> None:
        """Wait until the head's dashboard answers for Ray Jobs."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.dashboard}/api/jobs/", timeout=5).close()
                return
            if time.monotonic() > deadline:
                raise TimeoutError((self.folder / "head.log").read_text()[-4000:])
            time.sleep(0.2)

    def stop(self) -> None:
        """End all nodes for good."""
        self._ending.set()
        for unit in (*self.workers, self.head):
            unit.kill()
        for unit in (*self.workers, self.head):
            unit.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _head_words(self, cpus: int) -> list[str]:
        return [
            *("--head", f"--port={self.port}", f"--num-cpus={cpus}", f"--temp-dir={self.folder}"),
            *(f"--dashboard-port={self.dashboard_port}", "--include-dashboard=true"),
            f"--ray-client-server-port={self._client_port}",
        ]


class _Unit:
    """One node, with ``Restart=always``."""

    def __init__(self, nodes: RayNodes, name: str, words: list[str]) -> None:
        self._nodes, self._name, self._words = nodes, name, words
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self.held = threading.Event()
        self.starts = 0

    def start(self) -> None:
        self._run()
        self._thread.start()

    def kill(self) -> None:
        """SIGKILL for every process of the node at once: its machine lost power."""
        assert self._process is not None
        # All are known before the first is gone: its children would be another's then.
        for each in [*descendants(self._process.pid), self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)

    def join(self) -> None:
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        self.starts += 1
        environment = os.environ | SETTINGS
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        environment["PYTHONPATH"] = str(ROOT)
        environment.pop("RAY_ADDRESS", None)
        with (self._nodes.folder / f"{self._name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _START, self._nodes._python),
                    *("start", "--block", *self._words, *agent_ports()),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _keep(self) -> None:
        while True:
            assert self._process is not None
            self._process.wait()
            self.kill()
            if self._nodes._ending.wait(3.0):
                return
            while self.held.is_set():
                time.sleep(0.1)
            self._run()


@contextlib.contextmanager
def ray_nodes(
    forked: Forked, *, workers: int, cpus: int, words: Sequence[str] = ()
) -> Iterator[RayNodes]:
    """Nodes that run within the context."""
    nodes = RayNodes(forked, workers=workers, cpus=cpus, words=words)
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.stop()


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process started, and theirs."""
    with contextlib.suppress(OSError):
        for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(each)
            yield from descendants(int(each))


def agent_ports() -> list[str]:
    """Ports of a node's agents. A raylet that is to find them out gives up after half a minute."""
    names = (
        *("dashboard-agent-grpc-port", "dashboard-agent-listen-port"),
        *("runtime-env-agent-port", "metrics-export-port"),
    )
    return [f"--{name}={port}" for name, port in zip(names, free_ports(len(names)), strict=True)]


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
