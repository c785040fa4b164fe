"""The search section: closed, with names that may vary, tried on the experiment when read."""

from __future__ import annotations

from typing import Any

import pytest

from govray.errors import UsageError
from govray.train.inputs.experiment_config import Experiment
from govray.tune.search import check_first_comparison, check_metric
from govray.tune.search_config import Search, SearchFile, parse_search
from tests.support.search_files import FILE


def with_search(**change: Any) -> dict[str, Any]:
    return FILE | {"search": FILE["search"] | change}


def test_a_file_is_an_experiment_and_its_search() -> None:
    found = parse_search(FILE, where="here.yaml")
    assert found.max_time == 90
    assert found.search.tau == 0.5
    assert [type(rule).__name__ for rule in found.search.stop] == [
        "NoImprovement",
        "Threshold",
        "Divergence",
        "Memorization",
        "Custom",
    ]
    assert Search.model_validate(found.search.model_dump(mode="json")) == found.search


def test_a_metric_that_the_loop_does_not_report_is_refused_before_anything_starts() -> None:
    for metric in ("loss", "targets"):
        check_metric(parse_search(with_search(metric=metric), where="x"))
    with pytest.raises(UsageError, match=r"reports no 'los' .did you mean 'loss'"):
        check_metric(parse_search(with_search(metric="los"), where="x"))
    by = with_search(metric="validation/accuracy", goal="max", stop=[])
    with pytest.raises(UsageError, match="reports no 'validation/accuracy'"):
        check_metric(parse_search(by, where="x"))
    judged = by | {"validation": {"corpora": "held-out", "every_steps": 20}}
    check_metric(file := parse_search(judged, where="x"))
    check_first_comparison(file, {20, 60})
    with pytest.raises(UsageError, match="after 10 steps, before the first validation"):
        check_first_comparison(file, {10, 60})


def test_a_trial_is_the_experiment_with_its_values() -> None:
    found: SearchFile = parse_search(FILE, where="here.yaml")
    trial = found.trial(
        {
            "optimizer.lr": 0.003,
            "hyperparameters.width": 32,
            "data.rows_per_step.upper_half": 7,
            "seed": 3,
        }
    )
    assert type(trial) is Experiment
    assert (trial.optimizer.lr, trial.hyperparameters["width"], trial.seed) == (0.003, 32, 3)
    assert trial.data.rows_per_step["upper_half"].model_dump() == {
        "rows": 7,
        "every": 3,
    }
    assert trial.data.rows_per_step["everything"].rows == 4
    same = found.trial({})
    assert same == found.experiment
    assert trial.governance == same.governance


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("governance.policy", "governance.policy must not vary"),
        ("governance", "governance must not vary"),
        ("data.corpora", "data.corpora must not vary"),
        ("data.exclude", "data.exclude must not vary"),
        ("data", "no name that may vary"),
        ("hyperparameters", "no name that may vary"),
        ("hyperparameters.context", "context must not vary"),
        ("attestation_key", "no name that may vary"),
        ("optimizer.lrr", "did you mean 'lr'"),
        ("optimizer.betas.x.y", "no 'betas'"),
    ],
)
def test_a_name_that_must_not_vary_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=r"must not vary|no name|did you mean|has no") as caught:
        parse_search(with_search(space={name: {"choice": [0.5]}}), where="here.yaml")
    assert message in str(caught.value)
    with pytest.raises(UsageError, match=r"must not vary|no name|did you mean|has no"):
        parse_search(FILE, where="here.yaml").trial({name: 0.5})
