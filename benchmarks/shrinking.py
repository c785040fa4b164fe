"""``python -m benchmarks.shrinking``: an elastic run loses a node, governed and bare.

A cluster of two nodes trains with ``num_workers: [1, 2]``, one worker on each. Rank 0's node is
killed, and the run goes on with the other one. The time ends with the next step. Prints a table
and, as its last line, one JSON object: ``median_s`` and ``all_s`` of both.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import ray
from ray.cluster_utils import Cluster

from benchmarks.command import positive, run
from benchmarks.machine import versions
from benchmarks.one_corpus import OneCorpus
from benchmarks.recovery import CORPUS_BYTES, ROOT
from benchmarks.recovery_runs import RunShape, run_bare, run_governed, told
from govray.train.driver.ray_cluster import start_ray

SHAPE = RunShape(
    blocks=4, width=128, context=128, rows=8, steps=150, commit_every=10, workers=(1, 2), cpus=2
)
_QUICK = replace(SHAPE, blocks=2, width=32, context=32)
_LOST_AFTER = 25
_PATIENCE_S = 300.0
_NODE = {"num_cpus": 3}  # one worker of two, and one for the task that reads
_NOTICED = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}
_PATIENCE = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
_RAYS_OWN_PATIENCE = "60"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark.

    Raises:
        GovrayError: An option is wrong, or a run failed.
    """
    options = _options(argv)
    shape = _QUICK if options.quick else SHAPE
    kinds = ["governed"] if options.governed_only else ["governed", "bare"]
    print(versions("torch", "ray"), f"{shape}; {options.rounds} rounds", sep="\n", flush=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    os.environ |= _NOTICED
    head = {"num_cpus": 0, "include_dashboard": True, "dashboard_port": _free_port()}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(**_NODE) for _ in range(2)]
    start_ray(cluster.address)
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    try:
        # Ray prints the last words of a lost node to standard output.
        with (
            redirect_stdout(sys.stderr),
            tempfile.TemporaryDirectory(prefix="govray-shrinking-") as scratch,
        ):
            folder = Path(scratch)
            deployment = OneCorpus.deploy(folder / "deployment", CORPUS_BYTES)
            for number in range(options.rounds):
                for kind in kinds if number % 2 == 0 else kinds[::-1]:
                    print(f"{kind}, round {number + 1}", file=sys.stderr, flush=True)
                    place = folder / f"{kind}-{number}"
                    begin = _starter(kind, deployment, shape, place)
                    seconds[kind].append(_shrunk(begin, cluster, nodes, place / "events.jsonl"))
    finally:
        ray.shutdown()
        cluster.shutdown()
    for kind, values in seconds.items():
        print(
            f"{kind:<10} node killed to the next step: median {median(values):.1f} s, "
            f"{min(values):.1f} … {max(values):.1f}"
        )
    print(json.dumps({kind: {"median_s": median(v), "all_s": v} for kind, v in seconds.items()}))


def _starter(kind: str, deployment: OneCorpus, shape: RunShape, place: Path) -> Callable[[], Path]:
    if kind == "bare":
        os.environ[_PATIENCE] = _RAYS_OWN_PATIENCE
        return lambda: run_bare(shape, place)
    os.environ.pop(_PATIENCE, None)
    return lambda: run_governed(deployment, shape, place)


def _shrunk(begin: Callable[[], Path], cluster: Any, nodes: list[Any], events: Path) -> float:
    """Seconds from the end of rank 0's node to the end of the next step, on the other one."""
    # Nodes are removed and added in the main thread: Ray asks for that.
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(begin)

        def wait(ready: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
            ended = time.monotonic() + _PATIENCE_S
            while not ready(steps := _steps(events)):
                if running.done():
                    running.result()
                if running.done() or time.monotonic() > ended:
                    raise TimeoutError(f"the run is at {steps[-1:]}")
                time.sleep(0.02)
            return steps

        first = wait(lambda steps: len(steps) > _LOST_AFTER)[0]["pid"]
        lost = _node_of(nodes, first)
        nodes.remove(lost)
        killed = time.time()
        cluster.remove_node(lost, allow_graceful=False)
        steps = wait(lambda steps: steps[-1]["pid"] != first)
        running.result()
    nodes.append(cluster.add_node(**_NODE))
    return float(next(each["at"] for each in steps if each["pid"] != first) - killed)


def _steps(events: Path) -> list[dict[str, Any]]:
    try:
        return [each for each in told(events) if each["event"] == "step"]
    except FileNotFoundError:
        return []


def _node_of(nodes: Sequence[Any], pid: int) -> Any:
    """A worker's process is its raylet's child."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return next(n for n in nodes if n.all_processes["raylet"][0].process.pid == parent)


def _free_port() -> int:
    """A free port: the dashboard's own default may be taken."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shrinking", description=__doc__)
    parser.add_argument("--rounds", type=positive, default=3, help="lost nodes of each; 3")
    parser.add_argument("--governed-only", action="store_true", help="without bare Ray Train")
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(run(main))
