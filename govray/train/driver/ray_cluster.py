"""The Ray cluster that a command works on: one it joins, or one it starts here."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import Any

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # it is compiled
from ray.experimental.internal_kv import _internal_kv_get
from ray.job_config import JobConfig

from govray.errors import InfrastructureFailed
from govray.train.driver.job_metadata import EXPERIMENT
from govray.train.inputs import operator_key

_ALIVE = 0
"""``GcsNodeInfo.ALIVE``."""

_HOST_AND_PORT = re.compile(r"\[?(?P<host>[^/\[\]]+)\]?:(?P<port>[0-9]{1,5})")
_PATIENCE = 10.0
"""Seconds for a connection to a head node."""

JOIN_S = 180.0
"""Seconds after a node's start in which more may be on their way.
A node gives a head that is gone 60 s by Ray's default, then ends, is started again, and joins."""

START_TIMEOUT_S = 8
"""Seconds that Ray waits for room for all workers before it counts again. Its default is 60.
This bounds the delay when a node is gone and the cluster doesn't know it yet."""

_LATER_S = 0.05

# The addresses of the clusters that this process started.
_begun: set[str] = set()

_READ_ONLY = re.compile("node_[0-9a-f]{56}")
"""What Ray's monitor calls the type of a node that no autoscaler manages."""


def start_ray(
    address: str | None = None,
    num_cpus: int | None = None,
    *,
    meanwhile: str | None = None,
    experiment: str | None = None,
    dashboard: bool = True,
) -> None:
    """Connect to a cluster, or start one here with no more CPUs than this machine has.

    While Ray's processes start, this one imports the module ``meanwhile``, if there is one. The
    dashboard shows the name ``experiment`` with this driver. A cluster that starts here is ready
    sooner without one.

    Ray's own settings below are set before it starts, unless the environment has them. A key in
    ``GOVRAY_KEY`` is removed from the environment first; `operator_key.take` does that for other
    variables.

    Raises:
        Refused: The job's runtime environment holds a key.
        InfrastructureFailed: Ray doesn't start, or there is no cluster at the address.
    """
    operator_key.take()
    for noisy in ("ray.data", "ray.train"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    # Workers stay in the job's folder: hyperparameters may be relative paths.
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    if ray.is_initialized():
        return
    # Ray Train polls its workers this often; its default of 2 s bounds every report.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.05")
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(START_TIMEOUT_S))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    asked = address or os.environ.get("RAY_ADDRESS")
    # No daemon: an end in the middle of an import, as by Ctrl-C, would be a segmentation fault.
    importing = threading.Thread(target=_import, args=(meanwhile,)) if meanwhile else None
    if importing:
        importing.start()
    if asked is None:
        # A local cluster listens on loopback only and ends with this process. Without the address,
        # Ray would join another cluster on this machine.
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        # Nobody takes this machine away, so no process needs to watch for it.
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    try:
        if asked:
            _answers(asked)
        with _interruptible():
            ray.init(
                address=address if asked else "local",
                num_cpus=None if asked else num_cpus or os.cpu_count(),
                job_config=JobConfig(metadata={EXPERIMENT: experiment} if experiment else {}),
                include_dashboard=None if asked else dashboard,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        if not asked:
            _begun.add(ray.get_runtime_context().gcs_address)
        if importing:
            importing.join()  # of one that fails, another thread would get half a module
    except Exception as error:  # Ray raises this very class where a node takes more than 30 s
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise InfrastructureFailed(
            f"{'the cluster cannot be joined' if asked else 'Ray does not start here'}: {said[0]}",
            where=asked or "this machine",
            do="Check the address (RAY_ADDRESS) and that its head node runs"
            if asked
            else "Try again when the machine is less busy, or see the newest session in /tmp/ray",
        ) from error


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C raises `KeyboardInterrupt`, though not where Python would lose it.

    Ray forks. What `logging` runs at each fork ignores an error, and then never gives back the lock
    that it holds. There the signal comes once more, a little later.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        if frame is None or frame.f_globals is not vars(logging):
            raise KeyboardInterrupt
        threading.Timer(_LATER_S, os.kill, (os.getpid(), number)).start()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _import(module: str) -> None:
    with suppress(ImportError):  # raised again where it is used
        import_module(module)


def begun_here() -> bool:
    """Whether this process is connected to a cluster that it started."""
    return ray.is_initialized() and ray.get_runtime_context().gcs_address in _begun


def _answers(address: str) -> None:
    """Return if something listens where ``host:port`` says, or the address is of another kind.
    Ray asks a closed port again and again, once in a while without end."""
    if found := _HOST_AND_PORT.fullmatch(address):
        socket.create_connection((found["host"], int(found["port"])), timeout=_PATIENCE).close()


@contextmanager
def ray_running(
    num_cpus: int | None = None, *, meanwhile: str | None = None, experiment: str | None = None
) -> Iterator[None]:
    """Connect or start as `start_ray` does. Disconnect afterwards, unless Ray was connected before.

    Until then, Ray's threads may print to standard output at any moment, for instance that a worker
    died.
    """
    joined = ray.is_initialized()
    start_ray(num_cpus=num_cpus, meanwhile=meanwhile, experiment=experiment)
    try:
        yield
    finally:
        if not joined:
            ray.shutdown()


def autoscales() -> bool:
    """Whether an autoscaler serves the cluster: one that may add nodes, not Ray's mere monitor.

    Ray tells nobody directly. The second autoscaler's flag lies in the cluster's key-value store.
    The first reports the types of nodes, which have names of their own only where it manages them.
    """
    if _internal_kv_get("__autoscaler_v2_enabled", namespace="__autoscaler") == b"1":
        return True
    told: Any = json.loads(_internal_kv_get("__autoscaling_status") or b"{}")
    report = told.get("autoscaler_report") or {}
    types = {**(report.get("active_nodes") or {}), **(report.get("idle_nodes") or {})}
    return any(not _READ_ONLY.fullmatch(name) for name in types)


def nodes_in_time(
    enough: Callable[[list[Mapping[str, float]]], bool],
    *,
    labels: Mapping[str, str] | None = None,
    on_wait: Callable[[str], None] = lambda line: None,
) -> list[Mapping[str, float]]:
    """What each node has in all: resource name to amount.

    This returns as soon as that is enough, and otherwise when no node can be expected any more. The
    nodes of a head that has just begun join it within seconds, and jobs may be faster. So this
    waits while the newest node is younger than `JOIN_S`. It doesn't where an autoscaler knows which
    nodes come, nor where this process started the cluster.

    Args:
        labels: Only of nodes that have all of these.
        on_wait: Called with a line that says for what this waits.
    """
    said = False
    while True:
        nodes = [node["Resources"] for node in nodes_alive(labels)]
        if enough(nodes) or not os.environ.get("RAY_ADDRESS") or autoscales():
            return nodes
        if time.time() - newest_start() > JOIN_S:
            return nodes
        if not said:
            on_wait("the cluster is young and has too little room: waiting for more nodes to join")
            said = True
        time.sleep(1.0)


def nodes_alive(labels: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The nodes that the cluster counts as alive, and that have all of these labels."""
    asked = (labels or {}).items()
    return [n for n in ray.nodes() if n["Alive"] and asked <= n.get("Labels", {}).items()]


def newest_start() -> float:
    """When the newest of the nodes that are alive started, in seconds since 1970."""
    known = GcsClient(ray.get_runtime_context().gcs_address).get_all_node_info().values()
    return max((node.start_time_ms / 1e3 for node in known if node.state == _ALIVE), default=0.0)
