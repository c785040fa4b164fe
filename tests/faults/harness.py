"""Drive a run through its schedule: start it, do what its workers cannot, start it again.

Runs without a driver fault are driven by this process; the others by ``govray train FILE``
in a process of its own, on the same cluster, so that it can be killed.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ray
from deployment import Deployment
from fault_schedule import COMMIT_EVERY, MAX_STEPS, Schedule
from ray.util.state import list_actors
from sabotage import schedule_folder, spent

from govray.errors import GovrayError
from govray.train.config import parse_experiment
from govray.train.trainer import from_experiment

_POLL_S = 0.02
_STARTS = 6
"""A person gives the command again after an error; not for ever."""


@dataclass(frozen=True)
class Outcome:
    """A run that came to its end.

    Attributes:
        run: Its folder.
        starts: How often it was started from outside.
        errors: What the starts before the last one said.
    """

    run: Path
    starts: int
    errors: tuple[str, ...]


def drive(deployment: Deployment, schedule: Schedule, folder: Path) -> Outcome:
    """Run the schedule's experiment to its end.

    Args:
        deployment: What it trains on.
        schedule: What happens to it.
        folder: Gets the schedule's markers and the run.

    Raises:
        GovrayError: It failed although no fault had happened since it was started, or it
            was started too often.
    """
    faults = schedule_folder(folder / "faults", schedule)
    values = deployment.experiment(
        name=f"seed-{schedule.seed}",
        entrypoint="sabotage:GPT",
        max_steps=MAX_STEPS,
        checkpoint={"every_steps": COMMIT_EVERY, "save_trial_latest": schedule.keep},
        max_restarts=len(schedule.faults),
    )
    values["hyperparameters"] = {**values["hyperparameters"], "faults": str(faults)}
    trainer = from_experiment(parse_experiment(values, where=str(schedule)))
    errors: list[str] = []
    with _requests(faults):
        while True:
            before = spent(faults)
            try:
                run = Path(trainer.fit().path)
            except GovrayError as error:
                errors.append(str(error))
                if spent(faults) == before or len(errors) == _STARTS:
                    raise
            else:
                return Outcome(run, len(errors) + 1, tuple(errors))


@contextmanager
def _requests(faults: Path) -> Iterator[None]:
    """Meanwhile, kill what workers ask for."""
    stop = threading.Event()

    def serve() -> None:
        while not stop.wait(_POLL_S):
            for request in faults.glob("request-*"):
                request.unlink()
                # Said, because on a machine with several clusters Ray refuses to guess.
                address = f"http://{ray._private.worker.get_dashboard_url()}"
                for actor in list_actors(address, filters=[("state", "=", "ALIVE")]):
                    if actor.class_name.endswith("TrainController"):
                        os.kill(actor.pid, signal.SIGKILL)

    thread = threading.Thread(target=serve, name="requests", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
