"""A driver on a cluster of several nodes, of which one, rank 0's, is lost and another comes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray.train
from ray.cluster_utils import Cluster

from govray.train.attest.write_model import write_model
from govray.train.driver.ray_cluster import start_ray
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.run_folder import events
from tests.support import loops
from tests.support.deployment import Deployment
from tests.support.solo import run_here

STEPS = 150
EVERY = 10
PATIENCE_S = 240
NODE = {"num_cpus": 3}  # one worker of two, and one for the task that reads


def main(folder: Path, python: str) -> None:
    """Train, and write what happened when."""
    # The cluster notices after about a second that a node is gone; by default after 15.
    os.environ |= {"RAY_health_check_period_ms": "300", "RAY_health_check_failure_threshold": "3"}
    deployment = Deployment(folder / "deployment")
    slow = folder / "slow"
    slow.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", python)  # nodes are added during the run, too
        run = _train_on_changing_nodes(deployment, folder, slow)
    write_model(run, deployment.signers["operator"])
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        fixed = _trainer(deployment, folder, "fixed", 1, slow).train()
    write_model(fixed, deployment.signers["operator"])


def _train_on_changing_nodes(deployment: Deployment, folder: Path, slow: Path) -> Path:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(**NODE) for _ in range(2)]
    start_ray(cluster.address)
    try:
        elastic = _trainer(deployment, folder, "elastic", (1, 2), slow)
        # Nodes are added in the main thread: Ray asks for that.
        with ThreadPoolExecutor(1) as pool:
            training: Future[Path] = pool.submit(elastic.train)
            try:
                seen = _direct(cluster, nodes, folder / "runs" / "elastic", training)
            finally:
                slow.unlink()
            run = training.result()
        (folder / "seen.json").write_text(json.dumps(seen))
        return run
    finally:
        ray.shutdown()
        cluster.shutdown()


def _trainer(
    deployment: Deployment, folder: Path, name: str, workers: int | tuple[int, int], slow: Path
) -> Any:
    trainer = GovernedTrainer(
        parse_experiment(
            deployment.experiment(
                max_steps=STEPS,
                optimizer={"lr": 1e-3},
                checkpoint={"every_steps": EVERY, "save_trial_latest": 2},
                resources={
                    "num_workers": list(workers) if isinstance(workers, tuple) else workers,
                    "cpus_per_worker": 2,
                },
            ),
            where="test",
        )
    )
    return replace(
        trainer,
        train_loop_per_worker=loops.paced,
        train_loop_config={
            **trainer.loop_config,
            "slow": str(slow),
            "ran": str(folder / f"{name}.ran.jsonl"),
        },
        scaling_config=replace(trainer.scaling, elastic_resize_monitor_interval_s=0.5),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=str(folder / "runs"),
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    )


def _direct(
    cluster: Cluster, nodes: list[Any], run: Path, training: Future[Path]
) -> dict[str, float]:
    """Lose rank 0's node at step 15; add one when the run has gone on without it for a while."""
    seen: dict[str, float] = {}

    def wait(condition: Callable[[dict[int, int]], bool]) -> float:
        began = time.monotonic()
        while not condition(_world_sizes(run)):
            if training.done() or time.monotonic() - began > PATIENCE_S:
                raise TimeoutError(f"the run has {_world_sizes(run)}")
            time.sleep(0.05)
        return time.monotonic() - began

    wait(lambda worlds: len(worlds) > 15)
    cluster.remove_node(_node_of_rank_0(nodes, run), allow_graceful=False)
    seen["shrink_s"] = wait(lambda worlds: 1 in worlds.values())
    wait(lambda worlds: sum(world == 1 for world in worlds.values()) >= 5)
    cluster.add_node(**NODE)
    seen["grow_s"] = wait(lambda worlds: [*worlds.values()][-1] == 2)
    return seen


def _node_of_rank_0(nodes: list[Any], run: Path) -> Any:
    """The one that the event log names."""
    started = [each for each in events.read(run) if isinstance(each, events.WorkerStarted)]
    [wanted] = [each.node for each in started if each.rank == 0]
    return next(node for node in nodes if node.node_id == wanted)


def _world_sizes(run: Path) -> dict[int, int]:
    """Step → world size, by the write-ahead file as it is now."""
    try:
        lines = (run / "ledger.ahead.jsonl").read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return {}
    leaves = [json.loads(line) for line in lines]
    return {leaf["step"]: leaf["worldSize"] for leaf in leaves if "worldSize" in leaf}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
