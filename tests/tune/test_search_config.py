"""The search section: closed, with names that may vary, tried on the experiment when read."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from govray.errors import UsageError
from govray.train.inputs.experiment_config import Experiment
from govray.tune.objective import report
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


def test_a_metric_may_be_better_when_higher() -> None:
    rules = [{"threshold": {"metric": "accuracy", "above": 0.99}}, {"no_improvement": 2}]
    search = parse_search(with_search(metric="accuracy", goal="max", stop=rules), where="x").search
    assert (search.goal, search.lead) == ("max", "highest accuracy")
    assert Search.model_validate(search.model_dump(mode="json")) == search
    first, second = search.stop
    higher = [
        report(step=step, value=value, memorization=None, goal="max")
        for step, value in enumerate([0.5, 0.9, 0.995], 1)
    ]
    assert first.reason(higher) == "accuracy 0.995 is at or above 0.99"
    assert (first.reason(higher[:2]), second.reason(higher)) == (None, None)
    lower = [replace(each, value=-each.value, objective=-each.objective) for each in higher]
    assert second.reason(lower)


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


def test_without_a_limit_memorization_is_not_held_against_a_trial() -> None:
    search = {k: v for k, v in FILE["search"].items() if k != "memorization"}
    assert parse_search(FILE | {"search": search}, where="x").search.tau == math.inf
    limit = FILE["search"]["memorization"] | {"tau": math.inf}
    assert parse_search(with_search(memorization=limit), where="x").search.tau == math.inf


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


def test_a_trials_values_reach_the_arguments_of_a_described_optimizer() -> None:
    sgd = {"optimizer": {"name": "torch.optim.SGD", "lr": 0.1}}
    space = {"optimizer.arguments.momentum": {"uniform": [0.8, 0.99]}}
    found = parse_search(FILE | sgd | {"search": FILE["search"] | {"space": space}}, where="here")
    values = {"optimizer.arguments.momentum": 0.9, "optimizer.name": "torch.optim.RMSprop"}
    trial = found.trial(values).optimizer
    assert (trial.name, trial.lr, trial.arguments) == (
        "torch.optim.RMSprop",
        0.1,
        {"momentum": 0.9},
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("governance.policy", "governance.policy must not vary"),
        ("governance", "governance must not vary"),
        ("data.corpora", "data.corpora must not vary"),
        ("data.exclude", "data.exclude must not vary"),
        ("data", "no name that may vary"),
        ("data.reserve", "no name that may vary"),
        ("data.tokenizer", "no name that may vary"),
        ("data.rows_per_step", "no name that may vary"),
        ("hyperparameters", "no name that may vary"),
        ("hyperparameters.context", "context must not vary"),
        ("storage_path", "no name that may vary"),
        ("attestation_key", "no name that may vary"),
        ("max_steps", "no name that may vary"),
        ("pretrained", "no name that may vary"),
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_trails": 3}, "did you mean 'max_trials'"),
        ({"max_time": 91}, "above max_steps 90"),
        ({"space": {}}, "space"),
        ({"space": {"seed": {"lin": [0, 1]}}}, "give one of log, uniform, int, choice"),
        ({"space": {"seed": {"int": [0, 1], "log": [1, 2]}}}, "give one of log, uniform"),
        ({"space": {"seed": {"int": [3, 1]}}}, "low one first"),
        ({"space": {"optimizer.lr": {"log": [0, 1]}}}, "begins above 0"),
        ({"space": {"optimizer.lr": {"uniform": [0.1, math.inf]}}}, "finite"),
        ({"space": {"optimizer.lr": {"uniform": [-1, 1]}}}, "optimizer.lr"),
        ({"divisor": 1}, "divisor"),
        ({"goal": "maximum"}, "did you mean 'max'"),
        ({"goal": "max", "stop": [{"divergence": 3}]}, "divergence is of a loss"),
        ({"stop": [{"threshold": {"metric": "los", "below": 1}}]}, "did you mean 'loss'"),
        ({"stop": [{"nonsense": 1}]}, "give one of no_improvement"),
        ({"stop": [{"threshold": {}}]}, "give one of below, above"),
        ({"memorization": {"statistic": "m", "unit": "u", "tau": math.nan}}, "tau"),
    ],
)
def test_a_mistake_in_the_search_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_search(with_search(**change), where="here.yaml")
    assert message in str(caught.value)
    assert "here.yaml" in str(caught.value) or "trial" in str(caught.value)


def test_trials_are_of_equal_length() -> None:
    with pytest.raises(UsageError, match="max_steps: data is for one run"):
        parse_search({**with_search(), "max_steps": "data"}, where="here.yaml")


def test_a_search_ends_its_trials_itself() -> None:
    judged = {"corpora": "held-out", "every_steps": 1}
    found = parse_search(with_search(metric="validation/loss") | {"validation": judged}, where="x")
    assert found.experiment.validation is not None
    early = judged | {"early_stopping": {"patience": 1}}
    with pytest.raises(UsageError, match=r"early_stopping: a search ends its trials itself"):
        parse_search(with_search() | {"validation": early}, where="x")


def test_a_file_without_a_search_says_so() -> None:
    with pytest.raises(UsageError, match="no search section"):
        parse_search({k: v for k, v in FILE.items() if k != "search"}, where="here.yaml")


def test_the_mixture_of_a_stream_may_vary() -> None:
    found = parse_search(FILE, where="x.yaml")
    assert found.trial({"data.mixture.web": 0.5}).data.mixture == {"web": 0.5}
    assert found.trial({"seed": found.experiment.seed}) == found.experiment
    with pytest.raises(UsageError, match=r"data\.mixture\.web"):
        found.trial({"data.mixture.web": -1.0})
