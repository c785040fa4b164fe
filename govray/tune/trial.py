"""One trial: a governed run inside a Ray Tune trial, with the experiment's number of workers.

The trial's actor reserves almost no CPU. It drives a `GovernedTrainer` in a thread, whose workers
Ray Train places. It passes the run's reports on to Ray Tune.

Invariants:

* The trial gets the search's verified policy, credentials and prepared data as values, and no key,
  so it cannot use others. Only hyperparameters vary, by a closed list of names.
* All state is in the run's own commits. Ray Tune gets no copy of it, so it has nothing to pickle.
* A trial that is stopped commits first, and its run can resume there.
* A trial that takes over another's state becomes a new run with the other's commit, ledger and
  ancestry (`govray.train.state.cloning`). Ray only passes on where that commit lies.
* A trial that had ended when the search's driver died is not run again: it repeats its reports.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray.train
from ray import tune
from ray.tune.trainable import trainable

from govray.errors import GovrayError, Stopped
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.pins import TAKEN_OVER
from govray.train.checkpoint.storage import folder_name
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import Experiment
from govray.train.inputs.run_record import read_record
from govray.train.inputs.shared_inputs import Shared
from govray.train.run_folder import events, stop_request
from govray.train.state.cloning import clone
from govray.train.state.garbage_collection import pin_ahead
from govray.train.validation.best_so_far import ended_early
from govray.tune.may_change import HYPERPARAMETERS
from govray.tune.objective import WORST, TrialReport
from govray.tune.recipe import INVALID
from govray.tune.search_config import SearchFile
from govray.tune.search_record import TrialRecord
from govray.tune.stop_rules import first_reason
from govray.tune.trial_reports import (
    FILE,
    Measurement,
    Reporter,
    put_unreported_aside,
    read_reports,
    reports_until,
)

NAME = "trial"
"""The one entry of a trial's Tune configuration that is not a hyperparameter. It is right only when
the trial is drawn: a configuration taken over from another trial has the other's entry."""

RUN = "run"
"""Field of a result: folder of the trial's run."""

DONOR = "donor"
"""Field beside `RUN`: the run whose state it took over, empty if none."""

ENDED = "ended"
"""Field of a trial's last result: how it ended, if not by Ray Tune."""

REASON = "reason"
"""Field beside `ENDED`: why."""

INTERRUPTED = "interrupted"
"""Value of `ENDED` for a trial that will resume with the search."""

POLL_S = 0.1
STOP_S = 60.0
"""How long a stopped trial may take for its last commit."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all trials of a search have in common.

    Attributes:
        commit_at: Steps at which trials are compared, and so commit.
        keep_at: Those of them whose commits stay, for other trials to take over.
        past: Trials that the search had when its driver started, by name.
        repeats: Whether the scheduler gets all reports of past trials, or only the last.
    """

    folder: Path
    file: SearchFile
    shared: Shared
    commit_at: Collection[int]
    keep_at: Collection[int]
    past: dict[str, TrialRecord]
    repeats: bool = True


class GovernedTrainable(tune.Trainable):
    """What Ray Tune calls; see the module. ``setup`` gets the `Setting`."""

    # `tune.with_parameters` adds arguments, which Ray's annotation does not know.
    def setup(self, config: dict[str, Any], *, setting: Setting) -> None:  # type: ignore[override]
        # Ray would advise to reuse the actor, which has only imports to save.
        trainable.SETUP_TIME_THRESHOLD = math.inf  # type: ignore[assignment]
        self._setting = setting
        self._name = self.trial_name
        self._values = {name: value for name, value in config.items() if name != NAME}
        self._experiment = setting.file.trial(self._values)
        self._donor: tuple[Path, int] | None = None
        self._told = 0  # step of the last report that Ray had before a pause
        self._run = self._latest()
        self._past = setting.past.get(self._name)
        self._reports: list[TrialReport] = []
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._final: dict[str, Any] | None = None

    def step(self) -> dict[str, Any]:
        """Wait for the run's next report, or its end."""
        if self._final is not None:
            return self._final | {"done": True}
        if self._past and self._past.how:
            return self._repeat()
        # Earlier reports are passed on before the run resumes: the scheduler may stop it there.
        while (found := self._next()) is None:
            if not self._started().is_alive() and (found := self._next()) is None:
                return self._end()
            time.sleep(POLL_S)
        return self._result(found)

    def cleanup(self) -> None:
        """Called by Ray Tune at the trial's end: commit, and end the workers."""
        if self._thread and self._thread.is_alive():
            ending = self._reports and self._reports[-1].step >= self._setting.file.max_time
            if self._run.is_dir() and not ending:
                stop_request.request(self._run, "search")
            self._thread.join(STOP_S)

    def save(self, checkpoint_dir: str | None = None) -> Any:
        """Called by Ray Tune before a pause or for an exploit: where the last commit lies."""
        from ray.train._internal.session import _TrainingResult

        step = self._reports[-1].step if self._reports else 0
        where = tune.Checkpoint(str(self._run / folder_name(step))) if step else None
        return _TrainingResult(checkpoint=where, metrics=dict(self._last_result or {}))

    def restore(self, checkpoint_path: Any) -> None:
        """Called by Ray Tune after a pause, with what `save` returned for this trial or a donor."""
        commit = Path(checkpoint_path.checkpoint.path)
        step = int(commit.name.removeprefix(folder_name(0)[:-9]))
        if commit.parent.name.partition(".")[0] == self._name:
            self._told = step
            return  # the run resumes from its own latest commit
        self._donor = commit.parent, step
        lives = len(list(self._setting.folder.glob(f"{self._name}.*")))
        self._run = self._setting.folder / f"{self._name}.{lives + 1}"

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

    def _latest(self) -> Path:
        """The newest of the trial's runs with these values, or else the one to begin."""
        first = self._setting.folder / self._name
        clones = self._setting.folder.glob(f"{self._name}.*")
        for run in sorted(clones, key=lambda run: int(run.suffix[1:]), reverse=True):
            if read_record(run).experiment == self._experiment:
                return run
        return first

    def _trainer(self) -> Any:
        setting, experiment = self._setting, self._experiment
        if self._donor and not self._run.exists():
            donor, step = self._donor
            config = dict(self._make(setting, experiment).loop_config)
            _await(donor / folder_name(step))
            reports = {FILE: reports_until(donor, step)}
            changes = [
                name.removeprefix(HYPERPARAMETERS)
                for name in self._values
                if name.startswith(HYPERPARAMETERS)
            ]
            clone(donor, step, self._run, experiment, config, reports, changes)
        if setting.keep_at:
            self._run.mkdir(exist_ok=True)
            pin_ahead(self._run, setting.keep_at, TAKEN_OVER)
        put_unreported_aside(self._run)
        return self._make(setting, experiment)

    def _make(self, setting: Setting, experiment: Experiment) -> Any:
        return GovernedTrainer(
            experiment,
            shared=setting.shared,
            max_steps=setting.file.max_time,
            commit_at=tuple(setting.commit_at),
            resume=self._run if (self._run / "record" / "run.json").is_file() else None,
            run_config=ray.train.RunConfig(
                name=self._run.name,
                storage_path=str(setting.folder),
                failure_config=ray.train.FailureConfig(max_failures=experiment.max_restarts),
                # Ray's annotation is that of Tune's callbacks.
                callbacks=[Reporter(self._run, setting.file.search.metric)],  # type: ignore[list-item]
            ),
        )

    def _next(self) -> Measurement | None:
        """The first report still to be passed on. A donor's reports are not."""
        found = read_reports(self._run)
        before = self._donor[1] if self._donor else 0
        if not self._setting.repeats and self._told:
            before = self._told
        elif not self._setting.repeats and self._thread is None and found:
            before = found[-1].step - 1
        for each in found:
            if self._reports and each.step <= self._reports[-1].step:
                continue
            if each.step > before:
                return each
            self._judge(each)
        return None

    def _judge(self, found: Measurement) -> TrialReport:
        self._reports.append(found.judged(self._setting.file.search))
        return self._reports[-1]

    def _result(self, found: Measurement) -> dict[str, Any]:
        judged = self._judge(found)
        if judged.step >= self._setting.file.max_time:
            self._join()
            return self._last(judged, "finished", f"ran all {judged.step} steps")
        if self._thread and self._experiment.validation and ended_early(self._run, judged.step):
            self._join()
            return self._last(judged, "finished", f"ended early, after {judged.step} steps")
        if reason := first_reason(self._setting.file.search.stop, self._reports):
            return self._last(judged, "stopped", reason)
        return self._said(judged)

    def _said(self, judged: TrialReport) -> dict[str, Any]:
        """A report as a result, with its run and the run whose state that took over."""
        donor = self._donor[0].name if self._donor else ""
        return judged.to_result() | {RUN: self._run.name, DONOR: donor}

    def _last(self, judged: TrialReport, how: str, reason: str) -> dict[str, Any]:
        """The last report. It is not ``done`` yet: then Ray would not show it to the scheduler."""
        self._final = self._said(judged) | {ENDED: how, REASON: reason}
        return self._final

    def _repeat(self) -> dict[str, Any]:
        """The reports of a trial that has ended, one after the other, then how it ended."""
        past = self._past
        assert past is not None
        if past.how == "invalid":
            return self._invalid(past.reason or "")
        if (found := self._next()) is None:
            raise GovrayError(past.reason or "it failed", where=self._name)
        judged = self._judge(found)
        if past.how and past.how != "failed" and self._next() is None:
            return self._last(judged, past.how, past.reason or "")
        return self._said(judged)

    def _end(self) -> dict[str, Any]:
        error = self._failure
        if isinstance(error, Stopped):
            last = self._reports[-1].to_result() if self._reports else _worst()
            return last | {"done": True, ENDED: INTERRUPTED, REASON: str(error)}
        if isinstance(error, GovrayError) and not _has_begun(self._run):
            return self._invalid(str(error))
        if error is None:
            raise GovrayError("the run ended without its last report", where=self._name)
        raise error

    def _invalid(self, reason: str) -> dict[str, Any]:
        self._final = _worst() | {ENDED: "invalid", REASON: reason, INVALID: reason}
        return self._final

    def _join(self) -> None:
        """Wait for the end of a run whose last report is there."""
        self._started().join()
        if self._failure is not None:
            raise self._failure


def _await(commit: Path) -> None:
    """Wait until a donor has written the commit in flight."""
    deadline = time.monotonic() + STOP_S
    while not (commit / commit_folder.MANIFEST).is_file() and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _worst() -> dict[str, Any]:
    """A result without a report: Ray Tune requires its fields in every one."""
    return {"step": 0, "value": math.nan, "v": WORST, "objective": WORST}


def _has_begun(run: Path) -> bool:
    """Whether workers ever started. Before that, a refusal concerns the trial's hyperparameters."""
    return any(isinstance(event, events.AttemptStarted) for event in events.read(run))
