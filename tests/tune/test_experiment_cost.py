"""What an experiment file asks for, from its text alone."""

from __future__ import annotations

import pytest
import yaml

from govray.errors import UsageError
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


def test_the_most_workers_of_a_search_are_trials_at_once() -> None:
    most = "+resources.max_workers=7"
    found = cost(TUNE, most, "resources.num_workers=3")
    assert (found.workers, found.slots) == (3, 6)  # whole trials
    assert cost(TUNE, most, "+search.max_concurrent_trials=1", "resources.num_workers=3").slots == 3
    with pytest.raises(UsageError, match="up to 8 workers by num_workers"):
        cost(TUNE, most, "resources.num_workers=8")


@pytest.mark.parametrize(
    "key", ["command:sign --fast", "pkcs11:token=t;object=k?module-path=/m.so"]
)
def test_a_submitted_experiment_names_nothing_that_the_driver_would_run(key: str) -> None:
    with pytest.raises(UsageError, match="names no program or module that signs"):
        cost(TRAIN, f"+attestation_key='{key}'")
    assert cost(TRAIN, "+attestation_key=env:OTHER").kind == "train"


@pytest.mark.parametrize(
    "override",
    [
        "entrypoint=mine:Model",
        "optimizer={name: mine.Adam, lr: 0.1}",
        "+schedule={name: mine.Cosine}",
        "+environment.env_vars.PYTHONPATH=/x",
        "+environment.pip=[mine]",
    ],
)
def test_a_file_names_code_of_its_own_or_none(override: str) -> None:
    assert cost(TRAIN).own_code
    assert cost(TRAIN, "+pretrained=start").pretrained > cost(TRAIN).pretrained
    assert cost(TRAIN, "optimizer={name: torch.optim.SGD, lr: 0.1}").own_code
    assert not cost(TRAIN, "optimizer={lr: 0.1}", override).own_code
    assert not cost(TUNE, "+search.max_concurrent_trials=1").own_code
