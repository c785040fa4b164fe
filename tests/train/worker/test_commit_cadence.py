"""When a run commits: by steps, by minutes or by validations; the same numbers whatever it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import govray
from govray.data.step_reader import StepRows
from govray.engine.batch import AfterStep
from govray.engine.model.gpt import loss
from govray.errors import Stopped, UsageError
from govray.governance.record.batch_plan import BatchPlan
from govray.train.checkpoint import commit_folder
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.gating import UNDECIDED
from govray.train.replay.replayed_run import commits, replay
from govray.train.run_folder import stop_request
from govray.train.run_folder.requests import Requests
from govray.train.run_folder.run_lock import begin_attempt
from govray.train.worker import run as worker
from govray.tune.search_config import parse_search
from tests.support.committing import an_experiment
from tests.support.deployment import Deployment
from tests.support.held_out import hold_out
from tests.support.ranks import Hung, RankPool
from tests.support.solo import run_here
from tests.train.worker import test_gated_worker as gated

STEPS = 6
HOUR = 3600.0


class Clock:
    """Seconds that pass with each look."""

    def __init__(self, pace: float) -> None:
        self.now, self.pace = 0.0, pace

    def __call__(self) -> float:
        self.now += self.pace
        return self.now


def look(asked: Requests, *, may_commit: bool = True) -> AfterStep:
    return asked.look(may_commit=may_commit)


def test_the_clock_asks_for_a_commit_and_what_asks_for_more_comes_first(tmp_path: Path) -> None:
    clock = Clock(0)
    asked = Requests(tmp_path, 2, clock)
    assert look(asked) is AfterStep.NOTHING
    clock.now = 119
    assert look(asked) is AfterStep.NOTHING
    clock.now = 121
    assert look(asked, may_commit=False) is AfterStep.NOTHING  # it waits for a validation
    assert look(asked) is look(asked) is AfterStep.COMMIT  # until there is one
    asked.committed()
    assert look(asked) is AfterStep.NOTHING
    clock.now = 300
    stop_request.request(tmp_path, "a test")
    assert look(asked) is AfterStep.STOP
    assert look(Requests(tmp_path, None, clock)) is AfterStep.STOP


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return Deployment(tmp_path_factory.mktemp("deployment"))


@pytest.fixture
def here(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    run_here(monkeypatch)
    return deployment


def experiment(here: Deployment, checkpoint: dict[str, Any], **changes: Any) -> Any:
    value = here.experiment(
        max_steps=STEPS,
        checkpoint={"save_trial_latest": STEPS, **checkpoint},
        resources={"num_workers": 1},
        **changes,
    )
    return parse_experiment(value, where="test")


def paced(monkeypatch: pytest.MonkeyPatch, pace: float) -> None:
    """Let so many seconds pass before each step."""
    clock = Clock(pace)
    monkeypatch.setattr(
        worker, "Requests", lambda folder, minutes: Requests(folder, minutes, clock)
    )


def final(run: Path) -> dict[str, str]:
    """Digests of what the last commit holds, but for what tells of commits."""
    found = commit_folder.load(commits(run)[STEPS]).files
    return {
        name: hashlib.sha256(data).hexdigest()
        for name, data in found.items()
        if name not in ("state.json", "rng.json")
    }


def test_whatever_the_cadence_the_numbers_are_the_same(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_steps = GovernedTrainer(experiment(here, {"every_steps": 3})).train()
    paced(monkeypatch, 40)
    by_clock = GovernedTrainer(experiment(here, {"every_minutes": 1})).train()
    assert sorted(commits(by_steps)) == [3, 6]
    assert sorted(commits(by_clock)) == [2, 4, 6]
    assert final(by_clock) == final(by_steps)


def test_a_run_by_the_clock_that_was_stopped_ends_with_the_same_bytes_and_replays(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = experiment(here, {"every_minutes": 1})
    whole = GovernedTrainer(file).train()
    paced(monkeypatch, 40)

    def at_one(step: int, metrics: Any) -> None:
        if step == 1:
            stop_request.request(run, "a test")

    stopped = GovernedTrainer(file, on_step=at_one)
    run = Path(str(stopped.storage_place)) / stopped.run_id
    with pytest.raises(Stopped):
        stopped.train()
    assert sorted(commits(run)) == [2, 3]
    GovernedTrainer(file, resume=run).train(attest=True)
    assert sorted(commits(run)) == [2, 3, 5, 6]  # a minute from where it went on
    assert final(run) == final(whole)
    assert govray.verify(run / "model", trust_root=here.root)
    found = replay(run)
    assert found.checkpoints == (2, 3, 5, 6)
    assert found.identical


def test_by_validations_each_commit_has_its_metric(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = {"corpora": str(hold_out(here)), "every_steps": 2}
    for checkpoint, due in (
        ({"every_validations": 2}, [4, 6]),
        ({"every_minutes": 1}, [2, 4, 6]),  # due after steps 2 and 5: the second one waits
    ):
        paced(monkeypatch, 40)
        run = GovernedTrainer(experiment(here, checkpoint, validation=judged)).train()
        assert sorted(commits(run)) == due


@pytest.mark.parametrize(
    ("checkpoint", "says"),
    [
        ({"every_steps": 2, "every_minutes": 1}, "give one of every_steps, every_minutes"),
        ({"every_validations": 1}, "every_validations: the run is not validated; add a section"),
        ({"every_minutes": 0}, "every_minutes"),
        ({"every_minutes": "soon"}, "every_minutes"),
    ],
)
def test_a_cadence_that_means_nothing_is_refused(
    deployment: Deployment, checkpoint: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        experiment(deployment, checkpoint)


def test_a_search_compares_at_steps(deployment: Deployment) -> None:
    search = {"space": {"seed": {"choice": [1, 2]}}, "max_trials": 2, "searcher": "grid"}
    value = deployment.experiment(search=search, checkpoint={"every_minutes": 5})
    with pytest.raises(UsageError, match="which the clock would decide"):
        parse_search(value, where="test")
    assert parse_search(value | {"checkpoint": {}}, where="test").experiment.commit_steps == 100


class _Half:
    """What one of two ranks reads."""

    def __init__(self, folder: Path, made: BatchPlan) -> None:
        self.checkpoint, self.start_step, self.length = None, 0, gated.CONTEXT + 1
        attempt = [begin_attempt(folder, 0).attempt if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(attempt, src=0)
        self.attempt, self.decisions, self._plan = attempt[0], UNDECIDED, made

    def steps(self) -> Iterator[StepRows]:
        for step in range(gated.STEPS):
            rows = self._plan.rows(step)[gated.ROUTE.digest][dist.get_rank() :: 2]
            yield gated.rows_of(step, rows)


def on_ranks(folder: Path, own: bool) -> list[int]:
    """The steps after which this rank began a commit, of a run whose rank 0 alone has a clock.
    ``own``: each rank decides by what it was asked itself, as none may."""
    with pytest.MonkeyPatch.context() as patch:
        clock = gated.told(patch)
        patch.setattr(gated, "Rows", lambda made, folder: _Half(folder, made))
        paced(patch, 40)
        by_clock = an_experiment(checkpoint={"every_minutes": 1})
        run, _ = gated.start(folder, experiment=by_clock, expiries=gated.LATER)
        begun: list[int] = []
        begin = run._commits.begin
        patch.setattr(
            run._commits,
            "begin",
            lambda done, *args, **more: (begun.append(done), begin(done, *args, **more)),
        )
        for batch in run.batches():
            clock.now += 1
            metrics = run.step(batch, loss)
            if own and run._last:
                run._last = replace(run._last, asked=batch.asked)
            run.report(metrics)
        return begun


@pytest.mark.ranks
def test_ranks_commit_together_though_one_alone_has_a_clock(tmp_path: Path) -> None:
    pool = RankPool(2, timeout=20)
    try:
        assert pool.run(on_ranks, tmp_path / "agreed", False) == [[2, 4, 6, 8]] * 2
        with pytest.raises(Hung):  # the control
            pool.run(on_ranks, tmp_path / "own", True)
    finally:
        pool.close()
