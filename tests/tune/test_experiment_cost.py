"""What an experiment file asks for, from its text alone."""

from __future__ import annotations

import pytest
import yaml

from govray.errors import GovrayError, UsageError
from govray.governance.submission.yaml_overrides import overridden_text
from govray.tune.experiment_cost import ExperimentCost, experiment_cost
from tests.support.tree import ROOT

TRAIN, TUNE = ((ROOT / "jobs" / name).read_text() for name in ("train.yaml", "tune.yaml"))


def cost(text: str, *overrides: str) -> ExperimentCost:
    return experiment_cost(overridden_text(text, overrides, name="file"))


def test_a_run_takes_its_workers_and_steps() -> None:
    found = cost(TRAIN, "resources.gpus_per_worker=0.5")
    assert (found.kind, found.name, found.trials) == ("train", "python-source-gpt", 1)
    assert (found.workers, found.slots, found.gpus) == (2, 2, 1.0)
    rows = yaml.safe_load(TRAIN)["data"]["rows_per_step"]
    assert (found.steps, found.rows_per_step) == (300, sum(rows.values()))
    assert found.tokens == 300 * sum(rows.values()) * 256


def test_nobody_knows_beforehand_how_long_data_last() -> None:
    found = cost(TRAIN, "max_steps=data")
    assert (found.steps, found.tokens) == (None, None)
    assert any("the run ends with its data" in each for each in found.unknown)


def test_an_elastic_run_may_hold_its_most() -> None:
    elastic = cost(TRAIN, "resources.num_workers=[2, 6]")
    assert (elastic.slots, elastic.least) == (6, 2)
    assert cost(TRAIN).least is None  # it needs them all


def test_a_stream_that_takes_turns_counts_for_its_share() -> None:
    assert cost(TRAIN, "data.rows_per_step={a: {rows: 8, every: 4}, b: 3}").rows_per_step == 5


def test_a_search_takes_all_its_trials() -> None:
    found = cost(TUNE, "+search.max_concurrent_trials=2", "resources.num_workers=3")
    assert (found.kind, found.trials, found.slots) == ("tune", 4, 6)
    assert found.steps == 4 * 300
    assert cost(TUNE, "+search.max_concurrent_trials=2", "+search.max_time=100").steps == 400
    assert any("search ends trials early" in each for each in found.unknown)
    with pytest.raises(UsageError, match="max_concurrent_trials"):
        cost(TUNE)


def test_the_most_workers_of_a_search_are_trials_at_once() -> None:
    most = "+resources.max_workers=7"
    found = cost(TUNE, most, "resources.num_workers=3")
    assert (found.workers, found.slots) == (3, 6)  # whole trials
    assert cost(TUNE, most, "+search.max_concurrent_trials=1", "resources.num_workers=3").slots == 3
    with pytest.raises(UsageError, match="up to 8 workers by num_workers"):
        cost(TUNE, most, "resources.num_workers=8")


def test_the_file_says_where_and_when_it_starts() -> None:
    found = cost(TRAIN, "+resources.pool=gpu", "+resources.priority=-3")
    assert (found.pool, found.priority) == ("gpu", -3)
    assert (cost(TRAIN).pool, cost(TRAIN).priority) == (None, None)


@pytest.mark.parametrize(
    ("text", "field", "line"),
    [
        (TRAIN.replace("max_steps:", "max_stesp:"), "max_stesp", "max_steps:"),
        (TRAIN.replace("num_workers: 2", "num_workers: two"), "num_workers", "num_workers:"),
        (TUNE.replace("divisor: 2", "divisor: 1"), "divisor", "divisor:"),
    ],
)
def test_an_error_names_field_and_line(text: str, field: str, line: str) -> None:
    original = TUNE if "search:" in text else TRAIN
    number = next(n for n, each in enumerate(original.splitlines(), 1) if line in each)
    with pytest.raises(UsageError, match=field) as caught:
        experiment_cost(text, name="file")
    assert caught.value.where == f"file:{number}"


@pytest.mark.parametrize("text", ["", "- 1", "a: &x 1", "a: 1\na: 2", "x: !!python/name:os.system"])
def test_what_is_no_plain_file_is_refused(text: str) -> None:
    with pytest.raises(GovrayError):
        experiment_cost(text)


@pytest.mark.parametrize(
    "key", ["command:sign --fast", "pkcs11:token=t;object=k?module-path=/m.so"]
)
def test_a_submitted_experiment_names_nothing_that_the_driver_would_run(key: str) -> None:
    with pytest.raises(UsageError, match="names no program or module that signs"):
        cost(TRAIN, f"+attestation_key='{key}'")
    assert cost(TRAIN, "+attestation_key=env:OTHER").kind == "train"
