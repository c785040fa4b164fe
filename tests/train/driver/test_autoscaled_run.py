"""A run on a cluster that begins with no node, whose autoscaler may bring two."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray._private.services import get_node_ip_address
from ray.autoscaler._private.fake_multi_node import node_provider
from ray.util.state import list_nodes

import govray
from govray.governance.record.ledger import Leaf, read_leaves
from tests.support.deployment import Deployment
from tests.support.forked_nodes import PYTHON, ForkedNodes
from tests.support.forked_workers import RESIZED_S, Forked
from tests.support.ray_nodes import free_ports
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
    port, *others = free_ports(3)
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


def _await(log: Path, started: subprocess.Popen[bytes], patience_s: float = 120.0) -> None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and started.poll() is None:
        if "Ray runtime started" in log.read_text():
            return
        time.sleep(0.2)
    raise TimeoutError(f"no head: {log.read_text()[-2000:]}")


pytestmark = [pytest.mark.story, pytest.mark.timeout(1200)]

LOOP = """
import time
from pathlib import Path

import torch

from govray.engine.gpt import GPT, loss
from govray.train import govern, optimizer_of, schedule_of


def train_loop(config):
    torch.set_num_threads(1)  # two workers have this machine's two processors
    model = GPT(**config["hyperparameters"])
    run = govern(model, optimizer_of(config, model), schedule_of(config))
    for batch in run.batches():
        while Path("HELD").exists() and batch.step > LAST:  # whatever a busy machine takes
            time.sleep(0.1)
        if Path("HELD").exists():
            time.sleep(0.6)
        run.report(run.step(batch, loss))
"""

STEPS = 140
PATIENCE_S = 480.0
OVERRIDE = b"RAY_OVERRIDE_NODE_ID_FOR_TESTING="


def test_a_spot_node_that_is_taken_is_replaced(tmp_path: Path, forked: Forked) -> None:
    here = Deployment(tmp_path)
    (held := tmp_path / "held").touch()
    (tmp_path / "own_loop.py").write_text(
        LOOP.replace("HELD", str(held)).replace("LAST", str(STEPS - 10))
    )
    settings = {
        "entrypoint": "own_loop:train_loop",
        "checkpoint": {"every_steps": 10, "save_trial_latest": 2},
        "max_steps": STEPS,
    }
    elastic = tmp_path / "elastic.yaml"
    resources = {"num_workers": [1, 2], "cpus_per_worker": 2}
    elastic.write_text(yaml.safe_dump(here.experiment(**settings, resources=resources)))
    quick = {
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.05",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
        RESIZED_S: "5",
    }
    seen: dict[str, float] = {}
    # A node has room for one worker and a task that reads.
    with autoscaled_cluster(forked, cpus=3, most=2, idle_s=60, **quick) as address:
        run = train(forked, elastic, address)
        ledger = here.folder / "runs"
        with timed(seen, "two workers"):
            until(lambda: worlds(ledger)[-3:] == [2] * 3, "two workers", run)
        with timed(seen, "one worker"):
            os.kill(newest_raylet(), signal.SIGKILL)
            until(lambda: worlds(ledger)[-3:] == [1] * 3, "the run to go on with one", run)
        with timed(seen, "another node"):
            until(lambda: alive(address) == 3, "another node", run)
        held.unlink()
        out, err = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 0, err
    print(json.dumps({what: round(seconds, 1) for what, seconds in seen.items()}))
    model = Path(json.loads(out)["model"])
    govray.verify(model, trust_root=here.root)
    leaves = read_leaves((model / "governance" / "ledger.jsonl").read_bytes())
    steps = [each.step for each in leaves if isinstance(each, Leaf)]
    assert steps == list(range(STEPS))


def train(forked: Forked, file: Path, address: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [forked.govray, "train", str(file), "--json"],
        env=os.environ | {"RAY_ADDRESS": address},
        cwd=file.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def worlds(runs: Path) -> list[int]:
    """World size of each step that the only run has recorded."""
    for file in runs.glob("*/ledger.ahead.jsonl"):
        leaves = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
        return [leaf["worldSize"] for leaf in leaves if "worldSize" in leaf]
    return []


def newest_raylet() -> int:
    """The process of the node that the autoscaler brought last."""
    found = []
    for each in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            node = dict.fromkeys(
                line for line in each.read_bytes().split(b"\0") if line.startswith(OVERRIDE)
            )
            if (each.parent / "comm").read_text().strip() != "raylet" or not node:
                continue
            if OVERRIDE + node_provider.FAKE_HEAD_NODE_ID.encode() not in node:
                found.append(
                    (int((each.parent / "stat").read_text().split()[21]), each.parent.name)
                )
    return int(max(found)[1])


def alive(address: str) -> int:
    return len(list_nodes(address, [("state", "=", "ALIVE")], raise_on_missing_output=False))


@contextlib.contextmanager
def timed(seen: dict[str, float], what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    seen[what] = time.monotonic() - began


def until(
    condition: Callable[[], bool], what: str, driver: subprocess.Popen[str] | None = None
) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if driver is not None and driver.poll() is not None:
            raise RuntimeError(f"the run ended: {driver.communicate()}")
        if time.monotonic() > deadline:
            if driver is not None:
                driver.kill()
                what += f": {driver.communicate()}"
            raise TimeoutError(f"waited for {what}")
        time.sleep(0.2)
