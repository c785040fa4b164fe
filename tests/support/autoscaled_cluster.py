"""A cluster on this machine that starts with a head alone, and whose autoscaler brings nodes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ray._private.services import get_node_ip_address
from ray.autoscaler._private.fake_multi_node import node_provider

from tests.support.forked_nodes import PYTHON, ForkedNodes
from tests.support.forked_workers import Forked
from tests.support.tree import ROOT

_LISTS = (
    *("cluster_synced_files", "rsync_exclude", "rsync_filter", "initialization_commands"),
    *("setup_commands", "head_setup_commands", "worker_setup_commands"),
    *("head_start_ray_commands", "worker_start_ray_commands"),
)


@contextlib.contextmanager
def autoscaled_cluster(
    forked: Forked, cpus: int, most: int, idle_s: float, **settings: str
) -> Iterator[str]:
    """The address of a cluster whose head has no CPU for work."""
    port, *others = _free_ports(3)
    address = f"{get_node_ip_address()}:{port}"
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # its sockets' paths must be short
    file = folder / "autoscaler.json"
    file.write_text(json.dumps(_configuration(address, cpus, most, idle_s)))
    head = node_provider.FAKE_HEAD_NODE_ID
    environment = os.environ | {
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_memory_monitor_refresh_ms": "0",  # each node would count the whole machine's
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": head,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": head,
        "PYTHONPATH": str(ROOT),  # the monitor imports the provider
        PYTHON: forked.python,
        **settings,
    }
    environment.pop("RAY_ADDRESS", None)
    started = subprocess.Popen(
        [
            *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"),
            *(f"--port={port}", "--num-cpus=0", f"--temp-dir={folder}", "--disable-usage-stats"),
            *(f"--dashboard-port={others[0]}", f"--ray-client-server-port={others[1]}"),
            *("--dashboard-agent-listen-port=0", f"--autoscaling-config={file}"),
        ],
        env=environment,
        stdout=(folder / "head.log").open("w"),
        stderr=subprocess.STDOUT,
    )
    try:
        _await(folder / "head.log", started)
        yield address
    finally:
        started.terminate()
        started.wait(60)
        for left in _processes(folder):  # the head ends its own, not all of the pretended nodes'
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _configuration(address: str, cpus: int, most: int, idle_s: float) -> dict[str, Any]:
    kinds = {
        node_provider.FAKE_HEAD_NODE_TYPE: {
            "resources": {"CPU": 0},
            "node_config": {},
            "max_workers": 0,
        },
        "worker": {
            "resources": {"CPU": cpus},
            "node_config": {},
            "min_workers": 0,
            "max_workers": most,
        },
    }
    provider = {
        "type": "external",
        "module": f"{ForkedNodes.__module__}.{ForkedNodes.__name__}",
        "gcs_address": address,
        "launch_multiple": True,
        "head_node_id": node_provider.FAKE_HEAD_NODE_ID,
    }
    return {
        "cluster_name": "pretended",
        "max_workers": most,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": idle_s / 60,
        "provider": provider,
        "available_node_types": kinds,
        "head_node_type": node_provider.FAKE_HEAD_NODE_TYPE,
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        **{name: [] for name in _LISTS},
    }


def _processes(folder: Path) -> Iterator[int]:
    """Those that were started with a path below the folder."""
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(f"{folder}/") in each.read_bytes():
                yield int(each.parent.name)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _await(log: Path, started: subprocess.Popen[bytes], patience_s: float = 120.0) -> None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and started.poll() is None:
        if "Ray runtime started" in log.read_text():
            return
        time.sleep(0.2)
    raise TimeoutError(f"no head: {log.read_text()[-2000:]}")
