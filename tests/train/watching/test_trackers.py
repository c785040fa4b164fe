"""What trackers keep of a whole run: TensorBoard, MLflow and W&B for real, on this machine."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event

from govray.train.driver.trainer import new_or_unfinished
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.watching.mlflow_callback import MLflowCallback
from govray.train.watching.run_callback import RunCallback, RunStarted, Told
from tests.support.deployment import Deployment
from tests.support.newest_weights import newest_weights
from tests.support.solo import dies_at

# MLflow and W&B take seconds to import: only those tests do that use them.

STREAMS = {"everything", "upper_half", "removable"}


def events_of(folder: Any) -> list[Event]:
    """The events of TensorBoard's files: length, checksum, event, checksum, and so on."""
    found = []
    for file in sorted(folder.iterdir()):
        data, at = file.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            found.append(Event.FromString(data[at + 12 : at + 12 + size]))
            at += 12 + size + 4
    return found


def written(folder: Any) -> dict[str, dict[int, float]]:
    """Tag → step → value, as TensorBoard shows it: a restart takes later steps back."""
    tags: dict[str, dict[int, float]] = {}
    for event in events_of(folder):
        if event.HasField("session_log"):
            for steps in tags.values():
                for step in [each for each in steps if each >= event.step]:
                    del steps[step]
        for value in event.summary.value:
            tags.setdefault(value.tag, {})[event.step] = value.simple_value
    return tags


def test_tensorboard_has_every_step_once_after_a_resume_too(here: Deployment) -> None:
    plain = here.trainer().train(attest=True)  # finished: nothing of it goes on below
    began = here.trainer(tensorboard=True)
    with pytest.raises(KeyboardInterrupt):
        replace(began, on_step=dies_at(7)).train()
    value = here.experiment(resources={"num_workers": 1}, tensorboard=True)
    goes_on = new_or_unfinished(parse_experiment(value, where="test"))
    run = goes_on.train(attest=True)
    tags = written(run / "tensorboard")
    assert list(tags["loss"]) == list(range(12))
    assert {f"stream_loss/{each}" for each in STREAMS} <= tags.keys()
    assert {"targets", "tokens_per_second", "seconds"} <= tags.keys()
    assert newest_weights(run) == newest_weights(plain)
    assert len(list((run / "tensorboard").iterdir())) == 2


def started(folder: Any, step: int = 0) -> RunStarted:
    return RunStarted(
        run_id="tiny-1", folder=folder, experiment="tiny", step=step, settings={}, policy="p"
    )


@pytest.mark.story
def test_mlflow_has_settings_metrics_once_and_what_was_signed(
    here: Deployment, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracking = {"mlflow": {"tracking_uri": uri, "experiment": "governed"}}
    client = MlflowClient(tracking_uri=uri)
    client.create_experiment("governed", artifact_location=(tmp_path / "kept").as_uri())
    began = here.trainer(tracking=tracking)
    with pytest.raises(KeyboardInterrupt):
        replace(began, on_step=dies_at(7)).train()
    value = here.experiment(resources={"num_workers": 1}, tracking=tracking)
    run = new_or_unfinished(parse_experiment(value, where="test")).train(attest=True)

    experiment = client.get_experiment_by_name("governed")
    [found] = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == run.name
    assert found.data.params["optimizer.lr"] == "0.01"
    assert found.data.params["hyperparameters.blocks"] == "2"
    assert not any("attestation_key" in name for name in found.data.params)
    assert found.data.tags["govray.policy"].startswith("sha256:")
    steps = Counter(each.step for each in client.get_metric_history(found.info.run_id, "loss"))
    assert steps == Counter(range(12))
    kept = tmp_path / "kept" / found.info.run_id / "artifacts" / "governance"
    for file in ("attestation.dsse.json", "policy.dsse.json"):
        assert (kept / file).read_bytes() == (run / "model" / "governance" / file).read_bytes()


def log_records(data: bytes) -> list[bytes]:
    """The records of W&B's file: seven bytes of its own, then LevelDB's log format."""
    block, at, found = 1 << 15, 7, [b""]
    while at + 7 <= len(data):
        if block - at % block < 7:  # what remains of a block is filled up
            at += block - at % block
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        found[-1] += data[at + 7 : at + 7 + size]
        if kind in (1, 4):  # a whole record, or the last part of one
            found.append(b"")
        at += 7 + size
    return found[:-1]


def offline_records(data: bytes) -> tuple[list[int], dict[str, str], list[list[str]]]:
    """Steps of the metrics, settings, and the files of each artifact."""
    from wandb.proto import wandb_internal_pb2

    steps: list[int] = []
    config: dict[str, str] = {}
    artifacts: list[list[str]] = []
    for each in log_records(data):
        record = wandb_internal_pb2.Record.FromString(each)
        if record.HasField("history"):
            items = {i.key or ".".join(i.nested_key): i.value_json for i in record.history.item}
            steps.append(int(items["_step"]))
        if record.HasField("run"):
            config |= {entry.key: entry.value_json for entry in record.run.config.update}
        if record.HasField("artifact"):
            artifacts.append([file.path for file in record.artifact.manifest.contents])
    return steps, config, artifacts


@pytest.fixture
def wandb_imported() -> None:
    """W&B's 500 models ask for the module of every frame of their import. The frames of the import
    system itself have none, and among five thousand modules each answer takes milliseconds."""
    found = inspect.getmodule

    def getmodule(what: Any, *file: Any) -> Any:
        frozen = inspect.isframe(what) and what.f_code.co_filename.startswith("<frozen ")
        return None if frozen else found(what, *file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect, "getmodule", getmodule)
        importlib.import_module("wandb")


@pytest.mark.story
@pytest.mark.usefixtures("wandb_imported")
def test_wandb_has_settings_metrics_and_what_was_signed(
    here: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    tracking = {"wandb": {"project": "governed", "mode": "offline"}}
    run = here.trainer(tracking=tracking).train(attest=True)
    [file] = (run / "wandb").glob("offline-run-*/*.wandb")
    deadline = time.monotonic() + 60  # W&B's own process writes it, and a busy machine keeps it
    while True:
        steps, config, artifacts = offline_records(file.read_bytes())
        if len(steps) >= 12 or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert steps == list(range(12))
    assert json.loads(config["optimizer.lr"]) == 0.01
    assert ["attestation.dsse.json", "policy.dsse.json"] in [sorted(each) for each in artifacts]


class Fails(RunCallback):
    """Fails where a test says."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.ended: list[str] = []
        self.heard: list[int] = []

    def start(self, run: RunStarted) -> int | None:
        self._meet("start")
        return None

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._meet(str(step))
        self.heard.append(step)

    def end(self, outcome: str) -> None:
        self._meet("end")
        self.ended.append(outcome)

    def _meet(self, where: str) -> None:
        if where == self.where or (where.isdigit() and where in self.where):
            raise OSError("the tracker's server is gone\nat length")


@pytest.mark.parametrize(
    ("where", "heard", "said"),
    [
        ("start", [], [" to start, and is told no more"]),
        ("1", [0, 2, 3], [" and loses that call"]),
        ("12", [0, 3], [" and loses that call", "2 times"]),
        ("end", [0, 1, 2, 3], [" and loses that call"]),
    ],
)
def test_a_tracker_that_fails_loses_that_call_and_says_so_once(
    where: str, heard: list[int], said: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fails = Fails(where)
    with caplog.at_level(logging.WARNING), Told([fails]) as told:
        told.start(started(tmp_path))
        for step in range(4):
            told.step(step, {})
    assert fails.heard == heard
    messages = [each.getMessage() for each in caplog.records]
    assert len(messages) == len(said)
    assert all(each in message for each, message in zip(said, messages, strict=True))
    assert messages[0].endswith("the run goes on: OSError: the tracker's server is gone")


class Refusal(Exception):
    """As MLflow's, whose import takes seconds."""

    error_code = "INVALID_PARAMETER_VALUE"


class Server:
    """Stands for MLflow's client: it refuses names with a comma, and may be gone."""

    def __init__(self) -> None:
        self.kept: dict[str, list[int]] = {}
        self.gone = False

    def log_batch(self, run: str, metrics: Any = ()) -> None:
        if self.gone:
            raise OSError("the server is gone")
        if any("," in each.key for each in metrics):
            raise Refusal("Invalid name")
        for each in metrics:
            self.kept.setdefault(each.key, []).append(each.step)


def test_a_name_that_mlflow_refuses_costs_that_metric_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    callback, server = MLflowCallback(), Server()
    callback._client, callback._run = server, "r"
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            callback._waiting += [
                SimpleNamespace(key=key, step=step) for key in ("loss", "a,b", "c")
            ]
            server.gone = step == 1
            if server.gone:  # its metrics wait
                with pytest.raises(OSError, match="gone"):
                    callback._send()
            else:
                callback._send()
    assert server.kept == {"loss": [0, 1, 2], "c": [0, 1, 2]}
    assert [each.getMessage() for each in caplog.records] == [
        "MLflow refuses a,b of the metrics, which it gets no more"
    ]
