"""The experiment file: closed, with errors that name the field and the nearest right name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from govray.errors import UsageError
from govray.train.experiment.sections import Optimizer
from govray.train.inputs.experiment_config import (
    Experiment,
    Quota,
    parse_experiment,
    read_experiment,
)
from govray.train.inputs.run_settings import RunSettings, run_settings
from govray.train.loop.experiment_loop import learning_rate
from tests.support.tree import ROOT

JOB = ROOT / "jobs" / "train.yaml"


def test_the_shipped_experiment_is_valid() -> None:
    experiment = read_experiment(JOB)
    assert experiment.data.rows_per_step["everything"] == Quota(rows=14)
    assert experiment.context == 256


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_stepz": 3}, "did you mean 'max_steps'"),
        ({"aggregator": "govern"}, "did you mean 'governed'"),
        ({"data": {"corpora": "c", "rows_per_step": {}, "reserv": 0.1}}, "did you mean 'reserve'"),
        ({"max_steps": 0}, "max_steps"),
        ({"hyperparameters": {}}, "hyperparameters.context"),
        ({"name": "../up"}, "name"),
        ({"entrypoint": "os.system"}, "entrypoint"),
        ({"data": {"corpora": "c", "rows_per_step": {"x": 0}}}, "rows_per_step.x.rows"),
        (
            {"resources": {"num_workers": [4, 2]}},
            "num_workers: the least comes first: [2, 4]",
        ),
        ({"resources": {"num_workers": 0}}, "a whole number from 1, or [least, most]"),
        ({"resources": {"num_workers": [1, 2, 3]}}, "a whole number from 1, or [least, most]"),
        ({"resources": {"num_workers": [1.5, 2]}}, "a whole number from 1, or [least, most]"),
        ({"resources": {"num_workers": True}}, "a whole number from 1, or [least, most]"),
    ],
)
def test_a_mistake_is_named(change: dict[str, object], message: str) -> None:
    value = yaml.safe_load(JOB.read_text()) | change
    with pytest.raises(UsageError) as caught:
        parse_experiment(value, where="here.yaml")
    assert message in str(caught.value)
    assert caught.value.where == "here.yaml"


def test_a_reader_that_nobody_knows_is_refused() -> None:
    value = yaml.safe_load(JOB.read_text())
    with pytest.raises(UsageError, match=r"data\.reader: .*did you mean 'ray_data'"):
        parse_experiment({**value, "data": {**value["data"], "reader": "raydata"}}, where="here")


def test_rows_of_images_are_not_split_by_family() -> None:
    value = yaml.safe_load(JOB.read_text())
    value["data"] |= {"reserve_by": "family", "rows": "images"}
    with pytest.raises(UsageError, match="near copies are found in text, of images leave it out"):
        parse_experiment(value, where="here")


@pytest.mark.parametrize("workers", [1, 7, [1, 3], [2, 2]])
def test_workers_are_a_number_or_a_pair_and_survive_the_way_to_the_workers(workers: object) -> None:
    value = yaml.safe_load(JOB.read_text()) | {"resources": {"num_workers": workers}}
    experiment = parse_experiment(value, where="here.yaml")
    expected = tuple(workers) if isinstance(workers, list) else workers
    assert experiment.resources.num_workers == expected
    assert Experiment.model_validate(experiment.model_dump(mode="json")) == experiment


def test_the_schema_shows_both_forms() -> None:
    schema = Experiment.model_json_schema()["$defs"]["Resources"]["properties"]["num_workers"]
    assert [form["type"] for form in schema["anyOf"]] == ["integer", "array"]
    assert "[least, most]" in schema["description"]


def test_copies_of_a_sharded_model_need_workers_that_share_them() -> None:
    value = yaml.safe_load(JOB.read_text())
    value |= {"aggregator": "fsdp2", "sharding": {"replicate": 2}}
    for workers in (4, 6, [4, 4]):
        value["resources"] = {"num_workers": workers}
        experiment = parse_experiment(value, where="here")
        assert run_settings(experiment).replicate == 2
        assert Experiment.model_validate(experiment.model_dump(mode="json")) == experiment
    for workers, what in (
        (2, "2 workers can't hold 2 copies .*give 4 workers"),
        (5, "5 workers can't hold 2 copies"),
        ([4, 6], "elastic run .*between 4 and 6"),
    ):
        with pytest.raises(UsageError, match=what):
            parse_experiment({**value, "resources": {"num_workers": workers}}, where="here")
    with pytest.raises(UsageError, match="under aggregator ddp each worker has the whole model"):
        parse_experiment({**value, "aggregator": "ddp"}, where="here")
    with pytest.raises(UsageError, match=r"sharding\.replicate: .*greater than or equal to 2"):
        parse_experiment({**value, "sharding": {"replicate": 1}}, where="here")
    for given in ({"replicate": 2}, {"replicate": 0, "aggregator": "fsdp2"}):
        with pytest.raises(UsageError, match="replicate is"):
            RunSettings(**given)  # type: ignore[arg-type]


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such experiment"):
        read_experiment(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("added", "says"),
    [
        ("seed: 1\nseed: 2\n", r"test\.yaml:\d+: .*the key 'seed' stands twice"),
        ("seed: &one 1\n", "anchors and aliases are not accepted"),
        (f"streams: {'[' * 5000}{']' * 5000}\n", "not readable as YAML"),
        ("name: a\x07b\n", r"special characters are not allowed at character \d+"),
        ("seed: 99999999999-01-01T00:00:00+99:99\n", "seed"),
    ],
)
def test_a_file_means_here_what_it_means_in_the_queue(
    tmp_path: Path, added: str, says: str
) -> None:
    (file := tmp_path / "test.yaml").write_text(JOB.read_text())
    assert read_experiment(file).name  # control
    file.write_text(re.sub(r"(?m)^seed:.*\n", "", JOB.read_text()) + added)
    with pytest.raises(UsageError, match=says):
        read_experiment(file)


def test_the_learning_rate_warms_up_and_ends_at_a_tenth() -> None:
    optimizer = Optimizer(lr=1.0, warmup_steps=10)
    rates = [learning_rate(optimizer, step, 100) for step in range(100)]
    assert rates[0] == 0.1
    assert rates[9] == rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0.1 <= rates[-1] < 0.11
