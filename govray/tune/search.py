"""A search from its file to its conclusion: Ray Tune over governed runs.

Invariants:

* The key is read here, on the driver, and nowhere else; by an unsigned search not at all.
* A search resumes from its own record (`govray.tune.search_record`) by drawing the same trials
  again. Trials that had ended repeat their reports, which restores the scheduler's state.
* No trial's end ends the search, unless a stop was requested.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.logger import TBXLoggerCallback

from govray.errors import GovrayError, Refused, Stopped, UsageError, suggestion
from govray.governance.attestation.model_folder import MODEL
from govray.governance.attestation.selection_taint import Selection
from govray.governance.formats.keys import Signer
from govray.governance.policy.depth_policy import Policy
from govray.governance.submission.submission import Submission
from govray.storage.place import Place
from govray.storage.storage_url import check_path
from govray.train.attest.write_model import write_model
from govray.train.driver.run_request import new_run_id
from govray.train.driver.trainer import GovernedTrainer
from govray.train.driver.waiting_line import WaitingLine
from govray.train.experiment.sections import GROUP
from govray.train.inputs import run_listing
from govray.train.inputs.shared_inputs import Shared
from govray.train.loop.entrypoint import own_loop
from govray.train.loop.experiment_loop import REPORTED
from govray.train.run_folder import stop_request
from govray.train.run_folder.clock import instant
from govray.train.run_folder.register_posts import register_of
from govray.train.run_folder.run_lock import driving, hold, killed, take_over
from govray.tune import search_record as records
from govray.tune.cluster_capacity import TRIAL_CPUS, concurrent_trials, need, waiting_trials
from govray.tune.objective import Conclusion, Goal, TrialReport, conclude
from govray.tune.point_searcher import Points
from govray.tune.recipe import load_searcher
from govray.tune.repeating_searcher import RepeatingSearcher
from govray.tune.search_config import MemorizationLimit, SearchFile
from govray.tune.search_record import SearchRecord, TrialRecord
from govray.tune.trial import (
    DONOR,
    ENDED,
    INTERRUPTED,
    NAME,
    REASON,
    RUN,
    GovernedTrainable,
    Setting,
)
from govray.tune.trial_reports import read_reports

TUNE = "tune"
"""Folder of Ray Tune's own files in a search's folder, TensorBoard's included. Below it each driver
of the search has one folder."""

_POLL_S = 0.2
_LOOK_S = 2.0


@dataclass(frozen=True, kw_only=True)
class TrialStanding:
    """The state of one trial. ``last``: its last report; None before the first."""

    trial: TrialRecord
    last: TrialReport | None


Standings = Mapping[str, TrialStanding]


@dataclass(frozen=True, kw_only=True)
class SearchOutcome:
    """What a search found. ``models``: trial to its attested model folder; an unsigned search has
    attested none."""

    folder: Path
    standings: Standings
    conclusion: Conclusion
    models: Mapping[str, Path]


def run(
    file: SearchFile,
    *,
    new: bool = False,
    submission: Submission | None = None,
    unsigned: bool = False,
    on_change: Callable[[Standings], None] = lambda standings: None,
    on_resume: Callable[[Path], None] = lambda folder: None,
    on_wait: Callable[[str], None] = lambda line: None,
) -> SearchOutcome:
    """Search, here or on the cluster that Ray is connected to.

    Args:
        new: Begin anew even if an unfinished search like it can go on.
        submission: Who submitted the search; it has this one alone, ended or not.
        unsigned: No key is loaded: the data must be prepared, and others attest the trials.
        on_change: Called on the driver as trials report.

    Raises:
        Stopped: A signal asked for it. The same command resumes the search.
    """
    check_metric(file)
    folder = _folder(file, new, submission)
    folder.mkdir(parents=True, exist_ok=True)
    with hold(folder) as driver:
        if begun := (folder / records.SEARCH).is_file():
            on_resume(folder)
            record = records.read(folder)
            refuse_other_search(record, file, submission)
            if record.concluded:
                return _concluded(record)
        else:
            record = SearchRecord(
                folder=folder, file=file, started=instant(), submission=submission
            )
        base = base_trainer(record, unsigned=unsigned)
        _search(record, base, on_change, on_wait, driver=driver, begun=begun)
        standings = stand(record)
        conclusion = _conclude(standings, file.search.goal)
        models = (
            _tell(record, conclusion.best)
            if unsigned
            else _attest(record, conclusion.best, base.signer())
        )
        record.conclude()
    return SearchOutcome(folder=folder, standings=standings, conclusion=conclusion, models=models)


def _folder(file: SearchFile, new: bool, submission: Submission | None) -> Path:
    """Where the search lies, begun or not. That of a submission is named after it."""
    name = f"{file.experiment.name}-search"
    if submission is None:
        found = None if new else find_unfinished(file)
        return found.folder if found else _storage(file) / new_run_id(name)
    if new:
        raise UsageError(
            "a submission is one search, so its job starts no new one",
            where=f"submission {submission.id}",
            do="Leave --new out, or submit the search again",
        )
    return _storage(file) / submission.run_of(name)


def refuse_other_search(
    record: SearchRecord, file: SearchFile, submission: Submission | None
) -> None:
    if record.submission != submission or record.file != file:
        other = "submission" if record.submission != submission else "file"
        raise Refused(
            f"the search began with another {other}",
            where=str(record.folder),
            do="Restore what it began with, or submit the search again",
        )


def _concluded(record: SearchRecord) -> SearchOutcome:
    standings = stand(record)
    runs = {name: record.folder / trial.run for name, trial in record.trials.items()}
    return SearchOutcome(
        folder=record.folder,
        standings=standings,
        conclusion=_conclude(standings, record.file.search.goal),
        models={name: run / MODEL for name, run in runs.items() if (run / MODEL).is_dir()},
    )


def find_unfinished(file: SearchFile) -> SearchRecord | None:
    """The newest search of exactly this file that has neither ended nor a driver. Nobody submitted
    it: a submission's is found by its name."""
    for path in sorted(_storage(file).glob(f"*/{records.SEARCH}"), reverse=True):
        try:
            record = records.read(path.parent)
        except GovrayError:
            continue
        if record.file != file or record.submission is not None:
            continue
        if not record.concluded and not driving(path.parent):
            return record
    return None


def stand(record: SearchRecord) -> dict[str, TrialStanding]:
    search = record.file.search
    standings = {}
    for name, trial in record.trials.items():
        measured = read_reports(record.folder / trial.run)
        last = measured[-1].judged(search) if measured else None
        standings[name] = TrialStanding(trial=trial, last=last)
    return standings


def check_limit(limit: MemorizationLimit | None, policy: Policy, compared: int) -> None:
    """Refuse a limit on what the policy's monitor does not measure before trials are compared.

    Args:
        compared: The first step at which trials are compared.

    Raises:
        UsageError: Another statistic, or some corpus has no turn by then.
    """
    if limit is None or math.isinf(limit.tau):
        return
    where = "search.memorization"
    monitored = policy.memorization
    if monitored and monitored.statistic != limit.statistic:
        raise UsageError(
            f"the policy's monitor measures {monitored.statistic}, not {limit.statistic}",
            where=where,
            do="Name the policy's statistic, and give tau in its unit",
        )
    if monitored and monitored.every * monitored.turns > compared:
        raise UsageError(
            f"trials are compared at step {compared}, and each corpus was measured once by step "
            f"{monitored.every * monitored.turns} at the earliest: some memorizer would go unseen",
            where=where,
            do="Compare later, or lower the monitor's every or turns in the policy",
        )
    if monitored is None:
        logging.getLogger(__name__).warning(
            "the policy has no memorization section: unless the training loop reports M itself, "
            "every trial counts as above the limit"
        )


def check_metric(file: SearchFile) -> None:
    """Refuse a metric that govray's own training loop does not report. Others' may report any."""
    metric, judged = file.search.metric, file.experiment.validation
    reported = (*REPORTED, *(judged.names if judged else ()))
    if metric not in reported and not own_loop(file.experiment):
        raise UsageError(
            f"the training loop reports no {metric!r}{suggestion(metric, reported)}",
            where="search.metric",
            do=f"It reports {', '.join(reported)}",
        )


def check_first_comparison(file: SearchFile, rungs: Collection[int]) -> None:
    """Refuse to compare trials by validation data before these were measured. ``rungs``: steps at
    which its trials are compared."""
    experiment = file.experiment
    if experiment.validation is None or not file.search.metric.startswith(f"{GROUP}/"):
        return
    first = min([experiment.commit_steps or experiment.steps, *rungs])
    if experiment.validation.every_steps > first:
        raise UsageError(
            f"trials are compared after {first} steps, before the first validation",
            where="validation.every_steps",
            do=f"Validate every {first} steps or more often, or lower max_rungs",
        )


class _Watch(tune.Callback):
    """Records how trials end, and reports changes."""

    def __init__(
        self,
        record: SearchRecord,
        searcher: RepeatingSearcher,
        scheduler: Any,
        on_change: Callable[[Standings], None],
    ) -> None:
        self._record = record
        self._searcher = searcher
        self._reasons = getattr(scheduler, "reasons", {})
        self._on_change = on_change

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Ray pickles its experiment beside it; nobody opens that

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        name, how, own = str(trial), result.get(ENDED), result.get(RUN)
        if own and own != self._record.trials[name].run:
            values = {key: value for key, value in trial.config.items() if key != NAME}
            self._record.cloned(name, own, str(result[DONOR]), values)
        if how and how != INTERRUPTED:
            self._record.ended(name, how, str(result.get(REASON)))
        self._on_change(stand(self._record))

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        last = trial.last_result or {}
        # If the search was asked to stop, a trial that nobody ended resumes with it.
        if last.get(ENDED) != INTERRUPTED and not self._searcher.closed:
            why = self._reasons.get(trial.trial_id) or f"by {self._record.file.search.searcher}"
            why += f", after step {last.get('step', 0)}"
            self._record.ended(str(trial), "stopped", why)
        self._on_change(stand(self._record))

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        name = str(trial)
        folder = self._record.folder / self._record.trials[name].run
        self._record.ended(name, "failed", _error(trial, folder))
        self._on_change(stand(self._record))


class _Board(TBXLoggerCallback):
    """TensorBoard's files, without numbers that are not finite: it would warn of each."""

    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        shown = {
            name: value
            for name, value in result.items()
            if not isinstance(value, float) or math.isfinite(value)
        }
        super().log_trial_result(iteration, trial, shown)


class _Stop(tune.Stopper):
    """Ends the experiment once the trials of a search that was asked to stop have ended."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.asked


class _Room:
    """Follows the room that the cluster has, while a search runs. ``algorithm``: the recipe's
    searcher. If it is `Points`, more trials start as nodes join."""

    def __init__(self, file: SearchFile, algorithm: Any, on_wait: Callable[[str], None]) -> None:
        self._file = file
        self._algorithm = algorithm
        self._on_wait = on_wait
        self._line = WaitingLine(need(file.experiment.resources))
        self._looked = time.monotonic()

    def look(self) -> None:
        if time.monotonic() - self._looked < _LOOK_S:
            return
        self._looked = time.monotonic()
        if isinstance(self._algorithm, Points):
            with contextlib.suppress(UsageError):  # no node is alive: what started waits
                self._algorithm.concurrent = concurrent_trials(self._file)
        waiting = waiting_trials(self._file.experiment.resources)
        if line := self._line.look(waiting, time.monotonic()):
            self._on_wait(line)


def base_trainer(record: SearchRecord, *, unsigned: bool = False) -> GovernedTrainer:
    """The trainer whose inputs and prepared data all trials of a search share. Prepared data lies
    beside the search, where runs and other searches of equal data find it."""
    return GovernedTrainer(
        record.file.experiment,
        run_config=ray.train.RunConfig(storage_path=str(record.folder.parent)),
        submission=record.submission,
        unsigned=unsigned,
    )


def _search(
    record: SearchRecord,
    base: GovernedTrainer,
    on_change: Callable[[Standings], None],
    on_wait: Callable[[str], None],
    *,
    driver: int,
    begun: bool,
) -> None:
    file, folder = record.file, record.folder
    recipe = load_searcher(file.search.searcher)
    preview = recipe.preview(file)
    preview.require_method()
    rungs = {step for bracket in preview.brackets for step in bracket.rungs}
    check_first_comparison(file, rungs)
    shared = base.share(record.started)
    if not base.unsigned:  # before trials that nobody can attest
        shared.inputs.check_operator(base.signer().public_key)
    shared = replace(shared, selection=_selection(record, shared))
    compared = min(rungs, default=file.experiment.steps)
    check_limit(file.search.memorization, shared.inputs.policy.document, compared)
    if not begun:
        record.write()
    concurrent = concurrent_trials(file)
    # A new folder for each driver: its trials repeat their reports to the earlier one.
    own = folder / TUNE / f"driver-{driver}"
    own.mkdir(parents=True)
    made = recipe.recipe(file, concurrent)
    algorithm: Any = made.tune_config.search_alg
    searcher = RepeatingSearcher(algorithm, record)
    made.tune_config.search_alg = searcher
    stopper = _Stop()
    setting = Setting(
        folder=folder,
        file=file,
        shared=shared,
        commit_at=rungs | set(made.commit_at),
        keep_at=made.commit_at,
        past=dict(record.trials),
        repeats=made.repeats,
    )
    trainable = tune.with_resources(
        tune.with_parameters(GovernedTrainable, setting=setting), {"CPU": TRIAL_CPUS}
    )
    made.tune_config.trial_name_creator = lambda trial: trial.config[NAME]
    made.tune_config.trial_dirname_creator = lambda trial: trial.config[NAME]
    tuner = tune.Tuner(
        trainable,
        param_space=made.param_space,
        tune_config=made.tune_config,
        run_config=tune.RunConfig(
            name=own.name,
            storage_path=str(own.parent),
            stop=stopper,
            callbacks=[
                _Watch(record, searcher, made.tune_config.scheduler, on_change),
                _Board(),
            ],
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0),
            verbose=0,
        ),
    )
    room = _Room(file, algorithm, on_wait)
    patience = stop_request.Patience(file.experiment.preemption_timeout_s)
    _fit(tuner, record, searcher, stopper, room, patience)


def _selection(record: SearchRecord, shared: Shared) -> Selection:
    """What every trial's attestation says of the search."""
    search = record.file.search
    limit = search.memorization
    excluded = set(record.file.experiment.data.exclude)
    manifest, held_out = shared.prepared.manifest, shared.validation
    return Selection(
        search=record.folder.name,
        metric=search.metric,
        statistic=limit.statistic if limit else None,
        corpora=tuple(sorted({each.corpus for each in manifest.corpora} - excluded)),
        # Whatever the metric is, a loop gets these numbers too.
        validation={name: held_out.credentials[name].digest for name in held_out.corpora}
        if held_out
        else None,
    )


def _fit(
    tuner: tune.Tuner,
    record: SearchRecord,
    searcher: RepeatingSearcher,
    stopper: _Stop,
    room: _Room,
    patience: stop_request.Patience,
) -> None:
    """``tuner.fit()`` in a thread of its own, so that signals reach this one."""
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"  # TensorBoard's is requested
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # which prints even if told not to
    # A trial's actor has its workers beside it, so there is nothing to use again.
    warnings.filterwarnings("ignore", message=".*reuse_actors")
    failure: list[BaseException] = []

    def fit() -> None:
        try:
            tuner.fit()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=fit, name="govray-tune", daemon=True)
    with stop_request.signals() as received:
        thread.start()
        while thread.is_alive():
            thread.join(_POLL_S)
            room.look()
            if received:
                searcher.closed = True
                live = [run for run in _runs(record) if driving(run)]
                for each in live:
                    stop_request.request(each, received[0])
                stopper.asked = not live
                if live and (why := patience.over(received)):
                    for each in live:
                        take_over(each)
                        ended = killed(each, why)
                    raise ended
    if failure:
        raise GovrayError(
            f"Ray Tune failed: {type(failure[0]).__name__}: {failure[0]}".splitlines()[0],
            where=str(record.folder),
            do="The same command goes on with the search",
        ) from failure[0]
    _settle(record)
    if received:
        raise Stopped(
            "the search was stopped, as requested",
            where=str(record.folder),
            do="The same command goes on with it",
        )


def _runs(record: SearchRecord) -> list[Place]:
    return run_listing.list_runs(record.folder)


def _settle(record: SearchRecord) -> None:
    """Wait for the last commits of trials that were stopped."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not any(map(driving, _runs(record))):
            return
        time.sleep(_POLL_S)


def _attest(record: SearchRecord, best: str | None, signer: Signer) -> dict[str, Path]:
    """Attest the trials that ran to their end, and the best one even if it was stopped. Models that
    are attested already stay unchanged."""
    models = {}
    for name, trial in record.trials.items():
        if trial.how == "finished" or name == best:
            folder = record.folder / trial.run
            models[name] = folder / MODEL
            if run_listing.inspect(folder).state != "attested":
                write_model(folder, signer, stopped=None if trial.how == "finished" else instant())
    return models


def _tell(record: SearchRecord, best: str | None) -> dict[str, Path]:
    """Tell the register which trials have ended, for the attestor: those that `_attest` takes.
    A trial may have ended in an earlier attempt. There are no models yet."""
    for name, trial in record.trials.items():
        register = register_of(trial.run)
        if register is not None and (trial.how == "finished" or name == best):
            register.started(planted=False)
            register.ended()
    return {}


def _conclude(standings: Standings, goal: Goal) -> Conclusion:
    judged = {
        name: each.last
        for name, each in standings.items()
        if each.last and each.trial.how in ("finished", "stopped")
    }
    return conclude(judged, goal)


def _error(trial: Any, folder: Path) -> str:
    try:
        if why := run_listing.inspect(folder).why:
            return why
    except GovrayError:
        pass
    error = trial.get_error()
    return str(getattr(error, "cause", None) or error or "it failed").splitlines()[-1]


def _storage(file: SearchFile) -> Path:
    try:
        return check_path(Path(file.experiment.storage_path)).resolve()
    except ValueError:
        raise UsageError(
            "searches lie on a disk: its runs share their prepared data there",
            where="storage_path",
            do="Give a path, or train single runs at the URL",
        ) from None
