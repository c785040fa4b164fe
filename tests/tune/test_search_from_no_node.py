"""A loop of one's own in a search by validation accuracy, on a cluster that begins with no node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import govray
from tests.support.autoscaled_cluster import autoscaled_cluster
from tests.support.deployment import Deployment
from tests.support.forked_workers import Forked
from tests.support.held_out import hold_out

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LOOP = """
from govray.engine.gpt import GPT, loss
from govray.train import govern, optimizer_of, schedule_of


def train_loop(config):
    model = GPT(**config["hyperparameters"])
    run = govern(model, optimizer_of(config, model), schedule_of(config))
    for batch in run.batches():
        run.report(run.step(batch, loss))
"""

RATE = "optimizer.lr"


def test_an_own_loop_is_searched_by_accuracy_from_no_node_on(
    tmp_path: Path, forked: Forked
) -> None:
    here = Deployment(tmp_path)
    (tmp_path / "own_loop.py").write_text(LOOP)
    value = here.experiment(
        entrypoint="own_loop:train_loop",
        resources={"num_workers": 1, "cpus_per_worker": 1},
        checkpoint={"every_steps": 8},
        validation={"corpora": str(hold_out(here)), "every_steps": 4, "rows": 16},
        max_steps=8,
    )
    # One rate teaches the model next to nothing. So the best trial is known beforehand.
    value["search"] = {
        "searcher": "grid",
        "metric": "validation/accuracy",
        "goal": "max",
        "space": {RATE: {"choice": [1e-7, 0.02]}},
        "max_trials": 2,
    }
    file = tmp_path / "tune.yaml"
    file.write_text(yaml.safe_dump(value))
    quick = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.05"}
    # A node has room for a trial's worker and not for two: the second trial needs another node.
    with autoscaled_cluster(forked, cpus=2, most=2, **quick) as address:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("govray")), "tune", str(file), "--json"],
            env=os.environ | {"RAY_ADDRESS": address},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["metric"] == {"name": "validation/accuracy", "goal": "max"}
    trials = {each["values"][RATE]: each for each in found["trials"]}
    assert {each["ended"] for each in trials.values()} == {"finished"}
    assert trials[0.02]["value"] > trials[1e-7]["value"]
    assert found["best"] == trials[0.02]["trial"]
    assert "loss" not in trials[0.02]

    model = govray.verify(trials[0.02]["model"], trust_root=here.root)
    [selection] = model.attestation.selection_taint or ()
    assert selection.metric == "validation/accuracy"
    assert set(selection.validation or {}) == {"held-out"}
