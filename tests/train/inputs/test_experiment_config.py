"""The experiment file: closed, with errors that name the field and the nearest right name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from govray.errors import UsageError
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import (
    Experiment,
    Quota,
    parse_experiment,
    read_experiment,
)
from tests.support.deployment import Deployment
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
        ({"resources": {"num_workers": True}}, "a whole number from 1, or [least, most]"),
        (
            {"resources": {"memory": "8 gigs"}},
            "memory: '8 gigs' is no amount of memory; write 8GiB",
        ),
        ({"resources": {"memory": "0GB"}}, "memory: "),
        ({"resources": {"placement": "strict"}}, "placement: "),
        (
            {"resources": {"num_workers": [1, 2], "placement": "strict_pack"}},
            "placement: an elastic run starts with as many workers as fit",
        ),
        (
            {"project": "a b"},
            "project: 'a b' is not allowed: give 1 to 64 letters, digits and . _ -",
        ),
        ({"labels": ["good", "-bad"]}, "labels.1: '-bad' is not allowed: give 1 to 64 letters"),
        ({"labels": [f"l{n}" for n in range(21)]}, "labels: "),
        ({"description": "two\nlines"}, "description: a description is one line; write the rest"),
        ({"description": "x" * 1001}, "description: "),
        ({"notes": "a\x07bell"}, "notes: notes are lines of text"),
    ],
)
def test_a_mistake_is_named(change: dict[str, object], message: str) -> None:
    value = yaml.safe_load(JOB.read_text()) | change
    with pytest.raises(UsageError) as caught:
        parse_experiment(value, where="here.yaml")
    assert message in str(caught.value)
    assert caught.value.where == "here.yaml"


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


def test_a_mistake_in_a_file_has_its_line(tmp_path: Path) -> None:
    (file := tmp_path / "test.yaml").write_text(JOB.read_text() + "labels: [fine, no good]\n")
    line = len(file.read_text().splitlines())
    with pytest.raises(UsageError, match=rf"test\.yaml:{line}: .*'no good' is not allowed"):
        read_experiment(file)
    with pytest.raises(UsageError, match=r"test\.yaml: .*'-' is not allowed"):
        read_experiment(file, ["labels=['-']"])  # no line of the file says so


def experiment(folder: Path, **resources: Any) -> Experiment:
    value = Deployment(folder).experiment(resources={"num_workers": 1, **resources})
    return parse_experiment(value, where="test")


@pytest.fixture
def plain(tmp_path: Path) -> Experiment:
    return experiment(tmp_path)


def with_resources(plain: Experiment, **changes: Any) -> Experiment:
    return plain.model_copy(update={"resources": plain.resources.model_copy(update=changes)})


@pytest.mark.parametrize(
    ("written", "found"),
    [("8GiB", 8 << 30), ("1.5 GB", 1_500_000_000), ("512MiB", 512 << 20), (4096, 4096)],
)
def test_memory_and_placement_are_ray_s(tmp_path: Path, written: Any, found: int) -> None:
    asked = experiment(tmp_path, memory=written, placement="strict_spread")
    scaling = GovernedTrainer(asked).scaling
    assert scaling.resources_per_worker == {"CPU": 0.5, "memory": found}
    assert scaling.placement_strategy == "STRICT_SPREAD"


@pytest.mark.parametrize(
    "field", [{"pool": "gpu"}, {"priority": 5}, {"memory": 1}, {"placement": "spread"}]
)
def test_a_run_goes_on_with_another_place_in_the_queue(
    plain: Experiment, field: dict[str, Any]
) -> None:
    moved = with_resources(plain, **field)
    assert moved != plain
    assert moved.trains_as(plain)
    told = moved.model_copy(
        update={"project": "p", "description": "d", "notes": "n\nm", "labels": ("l",)}
    )
    assert told.trains_as(plain)
    # The same holds of what the resumed run compares with its record.
    assert GovernedTrainer(told).loop_config == GovernedTrainer(plain).loop_config
    assert GovernedTrainer(moved).loop_config == GovernedTrainer(plain).loop_config


def test_a_run_with_other_workers_is_another(plain: Experiment) -> None:
    other = with_resources(plain, num_workers=2)
    assert not other.trains_as(plain)
    assert GovernedTrainer(other).loop_config != GovernedTrainer(plain).loop_config
