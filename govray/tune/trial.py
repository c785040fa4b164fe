"""One trial: a governed run inside a Ray Tune trial, with as many workers as the experiment says.

The trial's actor holds next to nothing of the cluster; it drives a `GovernedTrainer` in a thread,
whose workers Ray Train places, and passes the run's reports on to Ray Tune.

Invariants:

* The trial has the search's verified policy, credentials and prepared data as values, and no key:
  it could not run under others. Only hyperparameters vary, by a closed list of names.
* All state is in the run's own commits. Ray Tune gets no copy of it, so it has nothing to pickle.
* A trial that is stopped commits first, and its run can go on from there.
* A trial that had ended when the search's driver died is not run again: it repeats its reports.

What it does not do: judge trials against each other (the scheduler), or attest (the driver).
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray.train
from ray import tune

from govray.errors import GovrayError, Stopped
from govray.train import events, stopping
from govray.train.shared import Shared
from govray.train.trainer import from_experiment
from govray.tune.config import SearchFile
from govray.tune.objective import WORST, Report, report
from govray.tune.recipe import INVALID
from govray.tune.record import TrialRecord
from govray.tune.reports import Measurement, Reporter, read_reports
from govray.tune.stopping import first_reason

NAME = "trial"
"""The one entry of a trial's Tune configuration that is no hyperparameter."""

ENDED = "ended"
"""Field of a trial's last result: how it ended, if it was not Ray Tune that ended it."""

REASON = "reason"
"""Field beside `ENDED`: why."""

INTERRUPTED = "interrupted"
"""What `ENDED` says of a trial that will go on when the search does."""

POLL_S = 0.1
STOP_S = 60.0
"""How long a trial that is stopped may take for its last commit."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all trials of a search have in common.

    Attributes:
        folder: The search's.
        file: The experiment, and how it is searched.
        shared: Verified inputs and prepared data.
        commit_at: Steps at which trials are compared, and so commit.
        past: Trials that the search had when its driver started, by name.
    """

    folder: Path
    file: SearchFile
    shared: Shared
    commit_at: Collection[int]
    past: dict[str, TrialRecord]


class Trial(tune.Trainable):
    """What Ray Tune calls; see the module. ``setup`` gets the `Setting`."""

    def setup(self, config: dict[str, Any], *, setting: Setting) -> None:
        """Called by Ray Tune; trains nothing yet."""
        # Ray has changed into a folder of its own; hyperparameters may be relative paths.
        os.chdir(os.environ.get("TUNE_ORIG_WORKING_DIR", os.curdir))
        self._setting = setting
        self._name = str(config[NAME])
        self._values = {name: value for name, value in config.items() if name != NAME}
        self._run = setting.folder / self._name
        self._past = setting.past.get(self._name)
        self._reports: list[Report] = []
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def step(self) -> dict[str, Any]:
        """Wait for the run's next report, or its end."""
        if self._past and self._past.how:
            return self._repeat()
        # What the run said before is passed on before it goes on: the scheduler may stop it there.
        while (found := self._next()) is None:
            if not self._started().is_alive() and (found := self._next()) is None:
                return self._end()
            time.sleep(POLL_S)
        return self._result(found)

    def cleanup(self) -> None:
        """Ray Tune lets go of the trial: commit, and end the workers."""
        if self._thread and self._thread.is_alive():
            if self._run.is_dir():
                stopping.request(self._run, "search")
            self._thread.join(STOP_S)

    def save(self, checkpoint_dir: str | None = None) -> Any:
        """Called by Ray Tune before a pause. The run's commits are the state."""
        from ray.train._internal.checkpoint_manager import _TrainingResult

        return _TrainingResult(checkpoint=None, metrics=dict(self._last_result or {}))

    def _started(self) -> threading.Thread:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._train, name=f"govray-{self._name}", daemon=True
            )
            self._thread.start()
        return self._thread

    def _train(self) -> None:
        try:
            self._trainer().train()
        except BaseException as error:
            self._failure = error

    def _trainer(self) -> Any:
        setting = self._setting
        experiment = setting.file.trial(self._values)
        return from_experiment(
            experiment,
            shared=setting.shared,
            max_steps=setting.file.max_time,
            commit_at=tuple(setting.commit_at),
            resume=self._run if (self._run / "record" / "run.json").is_file() else None,
            run_config=ray.train.RunConfig(
                name=self._name,
                storage_path=str(setting.folder),
                failure_config=ray.train.FailureConfig(max_failures=experiment.max_restarts),
                callbacks=[Reporter(self._run, setting.file.search.metric)],
            ),
        )

    def _next(self) -> Measurement | None:
        """The first report that was not passed on."""
        done = self._reports[-1].step if self._reports else 0
        return next((each for each in read_reports(self._run) if each.step > done), None)

    def _judge(self, found: Measurement) -> Report:
        search = self._setting.file.search
        judged = report(
            step=found.step,
            loss=found.loss,
            memorization=found.memorization,
            tau=search.tau,
            penalty=search.memorization.penalty if search.memorization else None,
        )
        self._reports.append(judged)
        return judged

    def _result(self, found: Measurement) -> dict[str, Any]:
        judged = self._judge(found)
        if judged.step >= self._setting.file.max_time:
            self._join()
            return judged.to_result() | _ended("finished", f"ran all {judged.step} steps")
        if reason := first_reason(self._setting.file.search.stop, self._reports):
            return judged.to_result() | _ended("stopped", reason)
        return judged.to_result()

    def _repeat(self) -> dict[str, Any]:
        """The reports of a trial that has ended, one after the other, then how it ended."""
        past = self._past
        assert past is not None
        if past.how == "invalid":
            return _invalid(past.reason or "")
        if (found := self._next()) is None:
            raise GovrayError(past.reason or "it failed", where=self._name)
        judged = self._judge(found)
        if past.how and past.how != "failed" and self._next() is None:
            return judged.to_result() | _ended(past.how, past.reason or "")
        return judged.to_result()

    def _end(self) -> dict[str, Any]:
        """What to say of a run that ended without a further report."""
        error = self._failure
        if isinstance(error, Stopped):
            last = self._reports[-1].to_result() if self._reports else _worst()
            return last | _ended(INTERRUPTED, str(error))
        if isinstance(error, GovrayError) and not _has_begun(self._run):
            return _invalid(str(error))
        if error is None:
            raise GovrayError("the run ended without its last report", where=self._name)
        raise error

    def _join(self) -> None:
        """Wait for the end of a run whose last report is there."""
        self._started().join()
        if self._failure is not None:
            raise self._failure


def _ended(how: str, reason: str) -> dict[str, Any]:
    return {"done": True, ENDED: how, REASON: reason}


def _invalid(reason: str) -> dict[str, Any]:
    return _worst() | _ended("invalid", reason) | {INVALID: reason}


def _worst() -> dict[str, Any]:
    """A result without a report: Ray Tune wants its fields in every one."""
    return {"step": 0, "loss": math.nan, "v": WORST, "objective": WORST}


def _has_begun(run: Path) -> bool:
    """Whether workers ever started: before that, what is refused is what the trial drew."""
    return any(isinstance(event, events.AttemptStarted) for event in events.read(run))
