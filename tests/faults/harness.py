"""Drive a run through its schedule: give the command, do what its workers cannot, give it again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ray
import yaml

from govray.errors import GovrayError
from govray.train.driver.trainer import new_or_unfinished
from govray.train.inputs.experiment_config import parse_experiment
from tests.faults.fault_schedule import COMMIT_EVERY, MAX_STEPS, Schedule
from tests.faults.sabotage import schedule_folder, spent
from tests.support.deployment import Deployment

_POLL_S = 0.02
_STARTS = 6
"""A person gives the command again after an error; not for ever."""


@dataclass(frozen=True)
class Outcome:
    """A run that came to its end."""

    run: Path
    starts: int
    errors: tuple[str, ...]


class Failed(Exception):
    """The command ended with an error, or was killed."""


def drive(deployment: Deployment, schedule: Schedule, folder: Path) -> Outcome:
    """Run the schedule's experiment to its end."""
    faults = schedule_folder(folder / "faults", schedule)
    experiment = deployment.experiment(
        name=f"seed-{schedule.seed}",
        entrypoint="tests.faults.sabotage:GPT",
        max_steps=MAX_STEPS,
        checkpoint={"every_steps": COMMIT_EVERY, "save_trial_latest": schedule.keep},
        max_restarts=len(schedule.faults),
    )
    experiment["hyperparameters"] = {**experiment["hyperparameters"], "faults": str(faults)}
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(experiment))
    start = _by_command if schedule.kills_driver else _here
    errors: list[str] = []
    driver: list[int] = []
    with _requests(faults, driver):
        while True:
            before = spent(faults)
            try:
                run = start(file, driver)
            except Failed as error:
                errors.append(str(error))
                if spent(faults) == before or len(errors) == _STARTS:
                    raise
            else:
                return Outcome(run, len(errors) + 1, tuple(errors))


def _here(file: Path, driver: list[int]) -> Path:
    experiment = parse_experiment(yaml.safe_load(file.read_text()), where=str(file))
    try:
        return Path(new_or_unfinished(experiment).fit().path)
    except GovrayError as error:
        raise Failed(str(error)) from error


def _by_command(file: Path, driver: list[int]) -> Path:
    command = [str(Path(sys.executable).with_name("govray")), "train", str(file), "--json"]
    address = ray.get_runtime_context().gcs_address
    process = subprocess.Popen(
        command,
        env={**os.environ, "RAY_ADDRESS": address},
        cwd=file.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    driver[:] = [process.pid]
    try:
        output, errors = process.communicate()
    finally:
        driver.clear()
        process.kill()
    if process.returncode:
        raise Failed(f"exit code {process.returncode}: {errors[-2000:]}")
    return Path(json.loads(output)["run"])


@contextmanager
def _requests(faults: Path, driver: list[int]) -> Iterator[None]:
    """Meanwhile, kill whom workers ask to kill."""
    stop = threading.Event()

    def serve() -> None:
        while not stop.wait(_POLL_S):
            for request in faults.glob("request-*"):
                for pid in driver:
                    os.kill(pid, signal.SIGKILL)
                request.unlink()

    thread = threading.Thread(target=serve, name="requests", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
