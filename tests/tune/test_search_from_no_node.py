"""A loop of one's own in a search by validation accuracy, on a cluster that begins with no node."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.util.state import list_nodes

import govray
from govray.train.checkpoint.commit_folder import MANIFEST
from govray.train.run_folder import events
from govray.tune.search_record import TRIALS
from tests.support.autoscaled_cluster import autoscaled_cluster
from tests.support.deployment import Deployment
from tests.support.forked_workers import FORGOTTEN_S, Forked
from tests.support.held_out import hold_out

pytestmark = [pytest.mark.story, pytest.mark.timeout(1200)]

LOOP = """
import time
from pathlib import Path

from govray.engine.gpt import GPT, loss
from govray.train import govern, optimizer_of, schedule_of


def train_loop(config):
    model = GPT(**config["hyperparameters"])
    run = govern(model, optimizer_of(config, model), schedule_of(config))
    for batch in run.batches():
        while batch.step == 6 and config["optimizer"]["lr"] < 1e-3 and Path("HELD").exists():
            time.sleep(0.1)
        run.report(run.step(batch, loss))
"""

RATE = "optimizer.lr"
POOR, GOOD = 1e-7, 0.02
"""One rate teaches the model next to nothing. So the best trial is known beforehand."""

PATIENCE_S = 480.0


def test_an_own_loop_is_searched_by_accuracy_from_no_node_on_and_goes_on_from_none(
    tmp_path: Path, forked: Forked
) -> None:
    here = Deployment(tmp_path)
    (held := tmp_path / "held").touch()
    (tmp_path / "own_loop.py").write_text(LOOP.replace("HELD", str(held)))
    value = here.experiment(
        entrypoint="own_loop:train_loop",
        resources={"num_workers": 1, "cpus_per_worker": 1},
        checkpoint={"every_steps": 4},
        validation={"corpora": str(hold_out(here)), "every_steps": 4, "rows": 16},
        max_steps=8,
    )
    value["search"] = {
        "searcher": "grid",
        "metric": "validation/accuracy",
        "goal": "max",
        "space": {RATE: {"choice": [POOR, GOOD]}},
        "max_trials": 2,
    }
    file = tmp_path / "tune.yaml"
    file.write_text(yaml.safe_dump(value))
    quick = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.05", FORGOTTEN_S: "25"}
    # A node has room for a trial's worker and not for two: the second trial needs another node.
    with autoscaled_cluster(forked, cpus=2, most=2, idle_s=6, **quick) as address:
        assert alive(address) == 1  # the head, which has no CPU for work
        first = tune(forked, file, address)
        search = held_up(first, here.folder / "runs")
        first.kill()
        first.communicate()
        begun = {each["values"][RATE]: search / each["trial"] for each in drawn(search)}
        reported = (begun[GOOD] / "reports.jsonl").read_bytes()
        until(lambda: alive(address) == 1, "the nodes to go")
        held.unlink()
        again = tune(forked, file, address)
        out, err = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, err
    assert f"Going on with {search}" in err
    found = json.loads(out)
    assert found["metric"] == {"name": "validation/accuracy", "goal": "max"}
    trials = {each["values"][RATE]: each for each in found["trials"]}
    assert {each["ended"] for each in trials.values()} == {"finished"}
    assert trials[GOOD]["value"] > trials[POOR]["value"]
    assert found["best"] == trials[GOOD]["trial"]
    assert "loss" not in trials[GOOD]

    # The trial that had ended ran no more, and the other went on from its commit.
    assert (begun[GOOD] / "reports.jsonl").read_bytes() == reported
    assert {rate: first_steps(run) for rate, run in begun.items()} == {GOOD: [0], POOR: [0, 4]}

    model = govray.verify(trials[GOOD]["model"], trust_root=here.root)
    [selection] = model.attestation.selection_taint or ()
    assert selection.metric == "validation/accuracy"
    assert set(selection.validation or {}) == {"held-out"}


def tune(forked: Forked, file: Path, address: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [forked.govray, "tune", str(file), "--json"],
        env=os.environ | {"RAY_ADDRESS": address},
        cwd=file.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def held_up(driver: subprocess.Popen[str], runs: Path) -> Path:
    """The search's folder, once one trial has ended and the other waits behind a commit."""

    def stands() -> bool:
        if driver.poll() is not None:
            raise RuntimeError(f"the search ended: {driver.communicate()}")
        [search] = [*runs.glob("*-search-*")] or [runs]
        ended = [line for line in lines(search) if line["kind"] == "ended"]
        return len(ended) == 1 and all(
            [*(search / each["trial"]).glob(f"checkpoint_*/{MANIFEST}")] for each in drawn(search)
        )

    until(stands, "the first trial to end")
    [search] = runs.glob("*-search-*")
    return search


def lines(search: Path) -> list[dict[str, Any]]:
    whole = (search / TRIALS).read_bytes().split(b"\n")[:-1] if (search / TRIALS).exists() else []
    return [json.loads(line) for line in whole]


def drawn(search: Path) -> list[dict[str, Any]]:
    return [line for line in lines(search) if line["kind"] == "drawn"]


def first_steps(run: Path) -> list[int]:
    """Where each attempt at a run began."""
    return [each.step for each in events.read(run) if isinstance(each, events.AttemptStarted)]


def alive(address: str) -> int:
    """How many nodes the cluster has, the head among them."""
    nodes = list_nodes(address, [("state", "=", "ALIVE")], raise_on_missing_output=False)
    return len(nodes)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited for {what}")
        time.sleep(0.5)
