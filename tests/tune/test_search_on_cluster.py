"""A search from the command line: its driver is killed, the same command ends it, and says why."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml

import govray
from govray.errors import CouldNotCheck
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.storage import folder_name
from govray.train.inputs.run_record import read_record
from govray.train.replay.replayed_run import replay
from govray.train.run_folder import events
from govray.tune.search_record import TRIALS
from tests.support.deployment import Deployment
from tests.support.forked_workers import Forked
from tests.support.memorizer import SECONDS

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("cluster"),
]

LR, MEMORIZES, HEADS = "optimizer.lr", "hyperparameters.memorizes", "hyperparameters.heads"

RECIPE = f"""
from govray.tune.recipe import METRIC, Recipe
from govray.tune.dry_run import random_points as preview

POINTS = [
    {{"{LR}": 0.02, "{MEMORIZES}": 2.0, "{HEADS}": 4}},  # the lowest loss, by memorizing
    {{"{LR}": 0.01, "{MEMORIZES}": 1.0, "{HEADS}": 4}},
    {{"{LR}": 0.01, "{MEMORIZES}": 0.0, "{HEADS}": 3}},  # 3 heads don't divide the width
    {{"{LR}": 0.0001, "{MEMORIZES}": 0.0, "{HEADS}": 4}},  # learns next to nothing
]


def recipe(file, concurrent):
    from ray.tune import TuneConfig

    from govray.tune.point_searcher import Points, from_sequence

    points = Points(from_sequence(POINTS), len(POINTS), concurrent)
    return Recipe({{}}, TuneConfig(metric=METRIC, mode="min", search_alg=points, num_samples=-1))
"""


def search_of(deployment: Deployment) -> dict[str, Any]:
    """Four trials of 16 steps with one worker each; M is made up, see memorizer.py."""
    recipe = deployment.folder / "given.py"
    recipe.write_text(RECIPE)
    experiment = deployment.experiment(
        entrypoint="tests.support.memorizer:GPT",
        resources={"num_workers": 1, "cpus_per_worker": 0.5},
        checkpoint={"every_steps": 8},
        max_steps=16,
    )
    return experiment | {
        "search": {
            "searcher": str(recipe),
            "space": {
                LR: {"log": [1e-4, 0.02]},
                MEMORIZES: {"choice": [0.0, 1.0, 2.0]},
                HEADS: {"choice": [3, 4]},
            },
            "max_trials": 4,
            # At step 8 nobody is above it: memorization appears late.
            "memorization": {"statistic": "made-up", "unit": "none", "tau": 1.5},
            "stop": [{"threshold": {"metric": "loss", "above": 5.3}}],
        }
    }


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return Deployment(tmp_path_factory.mktemp("search") / "here")


def tune(forked: Forked, config: Path, *more: str, **settings: str) -> subprocess.Popen[str]:
    """A driver of its own on the cluster; settings are what its workers find in the environment."""
    job = {"runtime_env": {"env_vars": settings}}
    return subprocess.Popen(
        [forked.govray, "tune", str(config), *more],
        env=os.environ
        | {
            "RAY_ADDRESS": ray.get_runtime_context().gcs_address,
            "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines_of(search: Path) -> list[dict[str, Any]]:
    whole = (search / TRIALS).read_bytes().split(b"\n")[:-1] if (search / TRIALS).exists() else []
    return [json.loads(line) for line in whole]


def drivers(run: Path) -> int:
    return sum(isinstance(each, events.DriverStarted) for each in events.read(run))


def test_a_killed_search_goes_on_and_runs_no_finished_trial_again(
    deployment: Deployment, forked: Forked
) -> None:
    config = deployment.folder / "tune.yaml"
    config.write_text(yaml.safe_dump(search_of(deployment)))
    runs = deployment.folder / "runs"

    # One trial is still between its commits when the other has finished. A kill between a commit
    # and its report would lose the report, and the trial would count as failed.
    first = tune(forked, config, **{SECONDS: "0.5"})
    ended: set[str] = set()
    while not ended:
        assert first.poll() is None, first.communicate()
        time.sleep(0.2)
        for search in runs.glob("*-search-*"):
            ended = {each["trial"] for each in lines_of(search) if each.get("how") == "finished"}
    first.kill()
    first.communicate()
    [search] = runs.glob("*-search-*")
    ended = {each["trial"] for each in lines_of(search) if each.get("how") == "finished"}
    drawn = [each for each in lines_of(search) if each["kind"] == "drawn"]
    before = {name: (search / name / "reports.jsonl").read_bytes() for name in ended}

    out, err = (second := tune(forked, config, "--json")).communicate(timeout=900)
    assert second.returncode == 0, err
    assert "Going on with" in err
    found = json.loads(out)
    assert found["search"] == str(search)

    # Nothing that had ended ran again, and what had been drawn is what ran.
    for name in ended:
        assert drivers(search / name) == 1
        assert (search / name / "reports.jsonl").read_bytes() == before[name]
    assert lines_of(search)[: len(drawn)] != []
    trials = {each["trial"]: each for each in found["trials"]}
    assert {name: trials[name]["values"] for name in trials if name in dict.fromkeys(trials)} == {
        each["trial"]: each["values"] for each in lines_of(search) if each["kind"] == "drawn"
    }

    by_values = {(t["values"][MEMORIZES], t["values"][HEADS]): t for t in trials.values()}
    memorizer, best = by_values[2.0, 4], by_values[1.0, 4]
    invalid, poor = by_values[0.0, 3], by_values[0.0, 4]
    assert {t["trial"]: t["ended"] for t in trials.values()} == {
        memorizer["trial"]: "finished",
        best["trial"]: "finished",
        invalid["trial"]: "invalid",
        poor["trial"]: "stopped",
    }
    assert "3 heads do not divide a width of 32" in invalid["reason"]
    assert "at or above 5.3" in poor["reason"]

    # The lowest loss is the memorizer's, and it lost; both are on the front.
    assert memorizer["value"] < best["value"]
    assert (memorizer["memorization"], memorizer["v"]) == (2.0, 0.5)
    assert found["best"] == best["trial"]
    assert found["metric"] == {"name": "loss", "goal": "min"}
    assert found["leader"]["trial"] == memorizer["trial"]
    assert found["leader"]["whyNotBest"].startswith("it memorizes: M 2")
    assert found["front"][0] == memorizer["trial"]
    assert best["trial"] in found["front"]

    # Each trial is a governed run under the same policy and the same prepared data.
    assert [each.name for each in runs.iterdir() if each != search] == ["prepared"]
    assert not (search / "prepared").exists()
    models = [govray.verify(t["model"], trust_root=deployment.root) for t in (memorizer, best)]
    assert len({model.manifest.digest for model in models}) == 1
    assert len({model.attestation.run.id for model in models}) == 2
    for model in models:
        [selection] = model.attestation.selection_taint or ()
        assert (selection.search, selection.metric) == (search.name, "loss")
        assert selection.statistic == "made-up"
        assert selection.corpora == model.attestation.plan.corpora
    assert not list(search.rglob("*.pem"))
    assert deployment.key.read_bytes().strip() not in b"".join(
        each.read_bytes() for each in search.rglob("*") if each.is_file()
    )
    assert list(search.glob("tune/driver-*/*/events.out.tfevents.*"))

    # Concluded: the same command begins anew.
    assert lines_of(search)[-1] == {"kind": "concluded"}


@pytest.mark.story
def test_a_trial_that_falls_behind_goes_on_from_a_better_one(
    deployment: Deployment, forked: Forked
) -> None:
    experiment = deployment.experiment(
        name="population",
        resources={"num_workers": 1, "cpus_per_worker": 0.5},
        data={
            "corpora": str(deployment.corpora),
            "rows_per_step": {"everything": 2, "upper_half": 1, "removable": 1},
            "epochs": 9,
        },
        checkpoint={"every_steps": 100},
        max_steps=12,
    )
    config = deployment.folder / "population.yaml"
    config.write_text(
        yaml.safe_dump(
            experiment
            | {
                "search": {
                    "searcher": "pbt",
                    "space": {
                        "optimizer.lr": {"log": [1e-5, 0.02]},
                        "optimizer.weight_decay": {"uniform": [0.0, 0.2]},
                    },
                    "max_trials": 2,
                    "max_concurrent_trials": 1,  # one after the other, and still a population
                    "max_rungs": 3,
                }
            }
        )
    )
    process = tune(forked, config, "--json")
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    found = json.loads(out)
    search = Path(found["search"])
    assert {each["ended"] for each in found["trials"]} == {"finished"}
    # Of its own, or of the searches before: they have equal data, so one reserve.
    [prepared] = (deployment.folder / "runs" / "prepared").iterdir()
    assert (prepared / "manifest.dsse.json").is_file()
    assert not (search / "prepared").exists()

    cloned = [each for each in lines_of(search) if each["kind"] == "cloned"]
    assert cloned
    last = cloned[-1]
    clone = search / last["run"]
    model = govray.verify(clone / "model", trust_root=deployment.root)
    ancestry = model.attestation.run.ancestry
    assert ancestry
    assert (model.attestation.run.id, ancestry[-1].run) == (last["run"], last["donor"])
    donor, step = search / last["donor"], ancestry[-1].step

    # The clone began with the donor's weights and ledger, byte for byte, under its own settings.
    begun, given = (read_commit(run / folder_name(step)) for run in (clone, donor))
    assert begun["model.safetensors"] == given["model.safetensors"]
    assert begun["optimizer.safetensors"] == given["optimizer.safetensors"]
    assert begun["ledger.jsonl"] == given["ledger.jsonl"]
    assert (clone / "ledger.ahead.jsonl").read_bytes().startswith(given["ledger.jsonl"])
    of_clone, of_donor = (read_record(run).experiment for run in (clone, donor))
    assert of_clone
    assert of_donor
    assert of_clone.optimizer != of_donor.optimizer
    assert of_clone.optimizer.lr == last["values"]["optimizer.lr"]
    assert json.loads(begun["optimizer.json"])["groups"][0]["hyperparameters"][
        "weight_decay"
    ] == pytest.approx(last["values"]["optimizer.weight_decay"])
    assert read_record(clone).policy == read_record(donor).policy
    assert read_record(clone).plan == read_record(donor).plan

    # Its coverage counts all steps that made its weights, the donor's among them.
    assert {leaf.step for leaf in model.ledger.steps} == set(range(12))
    with pytest.raises(CouldNotCheck, match=f"first {step} steps are those of"):
        replay(clone, steps=(0, step))


def read_commit(folder: Path) -> dict[str, bytes]:
    return dict(commit_folder.open_commit(folder).files)
