"""A user's script on a cluster asks Ray Train for its shards, and trains to the same bytes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray.train

from govray.governance.attestation import model_folder
from govray.train.checkpoint import commit_folder
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.run_record import read_record
from govray.train.run_folder import events
from govray.train.state import snapshot
from tests.support import loops
from tests.support.deployment import Deployment
from tests.support.planned_counts import counted_in

pytestmark = pytest.mark.usefixtures("cluster")


def weights(run: Path) -> str:
    found = snapshot.latest(run)
    assert found is not None
    return commit_folder.load(found[0]).entries[model_folder.WEIGHTS].digest


@pytest.mark.parametrize("reader", [None, pytest.param("ray_data", marks=pytest.mark.story)])
def test_a_script_gets_its_planned_rows_and_the_run_ends_with_the_same_bytes(
    finished: Path, deployment: Deployment, tmp_path: Path, reader: str | None
) -> None:
    """By Ray Data, where each planned row counts once; there a worker dies, and the run resumes."""
    run = deployment.folder / "runs" / f"shards-{reader}"
    experiment: dict[str, Any] = deployment.experiment()
    experiment["data"] = experiment["data"] | {"reader": reader}
    plan = read_record(finished).plan
    config = read_record(finished).config | {"seen": str(tmp_path), "partitions": plan.corpora}
    if reader:
        config |= {"run": str(run), "flag": str(tmp_path / "died"), "fail_at": 7}
    replace(
        GovernedTrainer(parse_experiment(experiment, where="test")),
        train_loop_per_worker=loops.reads_its_shards,
        train_loop_config=config,
        run_config=ray.train.RunConfig(name=run.name, storage_path=str(run.parent)),
    ).fit()
    assert weights(run) == weights(finished)
    starts = [e.step for e in events.read(run) if isinstance(e, events.AttemptStarted)]
    assert starts == ([0, 5] if reader else [0])

    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [each["start"] for each in ranks] == [starts[-1]] * 2
    planned = Counter(
        (step, corpus)
        for step in range(starts[-1], plan.max_steps)
        for places in plan.rows(step).values()
        for _, corpus, _ in places
    )
    dealt: Counter[tuple[int, str]] = Counter()
    for each in ranks:
        rows = each["rows"]
        for corpus in plan.corpora:
            dealt.update((row[0], corpus) for row in rows[corpus])
        assert Counter(map(tuple, rows["train"])) == Counter(
            tuple(row) for corpus in plan.corpora for row in rows[corpus]
        )
        if reader:
            assert counted_in(each["stats"]) == {c: len(rows[c]) for c in plan.corpora}
        else:
            assert "Planned" not in each["stats"]
    assert dealt == planned
