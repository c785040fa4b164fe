"""Searches, their trials and runs pack equal data once, and read what each would have packed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import ray.train

from govray.data import admission
from govray.governance.attestation import model_folder
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.stored_tensors import tensors_of
from govray.train.driver import preparation
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.pretrained_start import OptimizerStart
from govray.train.inputs.run_record import read_record
from govray.train.inputs.shared_inputs import Shared
from govray.train.run_folder.clock import instant
from govray.train.state import snapshot
from govray.train.state.trained_model import OPTIMIZER
from govray.tune.search import base_trainer
from govray.tune.search_config import SearchFile, parse_search
from govray.tune.search_record import SearchRecord
from tests.support.deployment import Deployment
from tests.support.solo import run_here

SALT, OTHER = b"\x07" * 32, b"\x08" * 32


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    run_here(monkeypatch)
    return Deployment(tmp_path / "here")


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where data was packed, in the order of the beginnings."""
    begun: list[Path] = []
    pack = admission.pack_all

    def noted(packing: Any, *rest: Any) -> Any:
        begun.append(packing.folder)
        return pack(packing, *rest)

    monkeypatch.setattr(admission, "pack_all", noted)
    return begun


def search_file(here: Deployment, **changes: Any) -> SearchFile:
    search = {"space": {"optimizer.lr": {"log": [1e-4, 1e-2]}}, "max_trials": 2}
    value: dict[str, Any] = here.experiment(max_steps=4, **changes) | {"search": search}
    # So large that two salts hold back different records of so few.
    value["data"].setdefault("reserve", 0.3)
    return parse_search(value, where="test")


def search(here: Deployment, name: str, **changes: Any) -> SearchRecord:
    folder = here.folder / "runs" / f"tiny-search-{name}"
    folder.mkdir(parents=True)
    return SearchRecord(folder=folder, file=search_file(here, **changes), started=instant())


def trial(record: SearchRecord, shared: Shared, lr: float) -> Path:
    """One trial, as `govray.tune.trial` starts it."""
    return GovernedTrainer(
        record.file.trial({"optimizer.lr": lr}),
        shared=shared,
        run_config=ray.train.RunConfig(name=f"trial-{lr}", storage_path=str(record.folder)),
    ).train()


def alone(here: Deployment, storage: str, lr: float) -> Path:
    """A run of a trial's experiment that has its storage, so its preparation, for itself."""
    experiment = search_file(here).trial({"optimizer.lr": lr})
    return GovernedTrainer(
        experiment, run_config=ray.train.RunConfig(name="run", storage_path=storage)
    ).train()


def weights(run: Path) -> bytes:
    found = snapshot.latest(run)
    assert found is not None
    return commit_folder.load(found[0]).files[model_folder.WEIGHTS]


def draw(monkeypatch: pytest.MonkeyPatch, salt: bytes) -> None:
    monkeypatch.setattr(preparation.secrets, "token_bytes", lambda count: salt)


def test_trials_have_the_weights_that_each_would_have_with_its_own_data(
    here: Deployment, packings: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(monkeypatch, SALT)
    record = search(here, "one")
    shared = base_trainer(record).share(record.started)
    draw(monkeypatch, OTHER)  # which nobody of this storage uses
    again = search(here, "two")
    trials = {1e-2: trial(record, shared, 1e-2)}
    trials[5e-3] = trial(again, base_trainer(again).share(again.started), 5e-3)
    assert len(packings) == 1

    draw(monkeypatch, SALT)
    for lr, run in trials.items():
        assert weights(run) == weights(alone(here, str(tmp_path / f"own-{lr}"), lr))
    assert len(packings) == 3
    assert len({weights(run) for run in trials.values()}) == 2

    draw(monkeypatch, OTHER)
    other = alone(here, str(tmp_path / "other"), 1e-2)
    assert weights(other) != weights(trials[1e-2])  # another reserve shows


def test_runs_and_searches_of_equal_data_share_it(here: Deployment, packings: list[Path]) -> None:
    first, second = search(here, "one"), search(here, "two", seed=9)
    prepared = [base_trainer(each).prepare() for each in (first, second)]
    plain = GovernedTrainer(first.file.experiment).prepare()
    assert {each.folder for each in (*prepared, plain)} == {plain.folder}
    assert plain.folder.parent == here.folder / "runs" / "prepared"
    assert len({each.digest for each in (*prepared, plain)}) == 1
    assert len(packings) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"hyperparameters": {"blocks": 2, "width": 32, "context": 16}},
        {"data": {"reserve": 0.2}},
        {"governance": {}},
    ],
    ids=["context", "reserve", "policy"],
)
def test_a_search_of_other_data_prepares_its_own(
    here: Deployment, packings: list[Path], changes: dict[str, Any]
) -> None:
    one = base_trainer(search(here, "one")).prepare()
    given = here.experiment()
    for section in ("data", "governance"):
        if section in changes:
            changes[section] = {**given[section], **changes[section]}  # type: ignore[dict-item]
    if "governance" in changes:
        policy = here.sign_policy(here.policy_text.replace("version: 1", "version: 2"))
        changes["governance"]["policy"] = str(policy)
    other = base_trainer(search(here, "two", **changes)).prepare()
    assert other.folder != one.folder
    assert len(packings) == 2


def test_two_at_once_pack_once(here: Deployment, packings: list[Path]) -> None:
    records = [search(here, each) for each in ("one", "two", "three")]
    start = threading.Barrier(len(records))
    found: list[Any] = []

    def prepare(record: SearchRecord) -> None:
        trainer = base_trainer(record)
        start.wait()
        try:
            found.append(trainer.prepare().digest)
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=prepare, args=[record]) for record in records]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 3
    assert len(packings) == 1
    assert [path.name[0] for path in (here.folder / "runs" / "prepared").iterdir()] != ["."]


def test_what_a_killed_preparation_left_is_not_taken_for_whole(
    here: Deployment, packings: list[Path], tmp_path: Path
) -> None:
    whole = base_trainer(search(here, "one")).prepare().folder
    # As a kill leaves it: packed, not yet renamed, and the lock's file still there.
    whole.rename(whole.with_name(f".{whole.name}.0123abcd.partial"))
    whole.with_name(f".{whole.name}.lock").touch()
    again = base_trainer(search(here, "two")).prepare()
    assert again.folder == whole
    assert len(packings) == 2
    assert [path.name for path in whole.parent.iterdir()] == [whole.name]


def test_trials_start_with_the_optimizer_of_the_run_that_their_file_names(here: Deployment) -> None:
    first = here.trainer(max_steps=3).train(attest=True)
    record = search(here, "one", pretrained=str(first / "model"), pretrained_optimizer=str(first))
    shared = base_trainer(record).share(record.started)
    begun = snapshot.latest(first)
    assert begun
    commit = commit_folder.open_commit(begun[0])
    expected = OptimizerStart(folder=str(begun[0]), commit=commit.digest)
    for lr in (1e-2, 5e-3):
        run = trial(record, shared, lr)
        start, found = read_record(run).start, snapshot.latest(run)
        assert start
        assert start.optimizer == expected
        assert found
        state = tensors_of(commit_folder.open_commit(found[0]), OPTIMIZER)
        assert state["step/head.weight"] == 3 + 4
