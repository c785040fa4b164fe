"""Runs and their states, from their folders alone, and which may be resumed.

The driver's lock shows whether a run has a driver. Nothing here needs a cluster, or writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import ValidationError

from govray.data.corpus import read_credentials
from govray.errors import GovrayError, Refused
from govray.governance.attestation.environment import EarlierCode
from govray.governance.attestation.model_folder import MODEL
from govray.governance.formats import canonical_json
from govray.governance.formats.document import format_time, parse_time
from govray.governance.formats.dsse import Envelope
from govray.governance.submission.submission import Submission
from govray.storage.place import Place, place
from govray.train.experiment.import_path import import_named
from govray.train.inputs import operator_key
from govray.train.inputs.experiment_config import APART, Experiment
from govray.train.inputs.needed_extras import require_extras
from govray.train.inputs.run_record import RunRecord, read_record
from govray.train.inputs.verified_inputs import read
from govray.train.run_folder import events
from govray.train.run_folder.requests import STOP
from govray.train.run_folder.run_lock import driving
from govray.train.run_folder.source_code import code_digest, source_of

State = Literal[
    "running", "stopping", "stopped", "finished", "attested", "failed", "killed", "interrupted"
]


_GOVRAY = "govray's own code"
_SOURCE = "code of the model or loop"
OTHER_CODE = frozenset({_GOVRAY, _SOURCE})
"""What may have changed where ``--other-code`` is said."""

Allowed = frozenset[str] | None
"""The changes that are allowed; None where nobody can allow any."""

Ended = Literal["killed", "stopped", "failed"]


@dataclass
class LogSummary:
    """What an event log says of a run's state: a sum that goes on where it ended.

    An attempt lasts from its start to the event that ends it, or to the start of the next. If its
    driver ended without a word, it lasts to its last event: what came after is unknown and not
    counted. How a run ended is what its newest driver says.

    Attributes:
        attempts, attempt, world_size: How many began; number and workers of the newest.
        step, loss: Steps done, and the last loss told.
        ended, why: How the newest driver's run ended, if it said so, and by which error.
        last: The time of the last event.
    """

    attempts: int = 0
    attempt: int = 0
    world_size: int | None = None
    step: int = 0
    loss: float | None = None
    ended: Ended | None = None
    why: str | None = None
    last: str = ""
    _seconds: float = 0.0
    _began: str | None = None

    @classmethod
    def of(cls, log: Iterable[events.AnyEvent]) -> LogSummary:
        """That of a whole log."""
        found = cls()
        for event in log:
            found.take(event)
        return found

    def to_json(self) -> dict[str, Any]:
        """Its fields, for ``LogSummary(**fields)``."""
        return asdict(self)

    @property
    def worker_seconds(self) -> float:
        """Seconds of all workers of all attempts. See the class for what an attempt lasts."""
        return self._seconds + self._lasted(self.last)

    def take(self, event: events.AnyEvent) -> None:
        """Add the next event."""
        ends = None
        match event:
            case events.DriverStarted():
                self.ended = self.why = None
                ends = self.last
            case events.AttemptStarted() | events.Stopped() | events.Finished() | events.Killed():
                ends = event.at
            case events.Failed():
                ends = event.at
        if ends is not None:
            self._seconds, self._began = self._seconds + self._lasted(ends), None
        match event:
            case events.AttemptStarted():
                self._began, self.world_size = event.at, event.world_size
                self.attempts, self.attempt, self.step = (
                    self.attempts + 1,
                    event.attempt,
                    event.step,
                )
            case events.Progress():
                self.step = event.step + 1
                self.loss = self.loss if event.loss is None else event.loss
            case events.Stopped() | events.Finished():
                self.step = event.step
        if self.ended != "killed":
            match event:
                case events.Killed():
                    self.ended, self.why = "killed", None
                case events.Stopped():
                    self.ended, self.why = "stopped", None
                case events.Failed(decision="stop"):
                    self.ended, self.why = "failed", event.what
        self.last = event.at

    def _lasted(self, until: str) -> float:
        """Seconds of the workers of the attempt that runs, up to a time."""
        if self._began is None or self.world_size is None:
            return 0.0
        # A clock that was set back takes nothing away.
        lasted = (parse_time(until) - parse_time(self._began)).total_seconds()
        return max(lasted, 0.0) * self.world_size


@dataclass(frozen=True)
class ListedRun:
    """The state of one run.

    Attributes:
        state: ``interrupted`` is a run whose driver ended without a word.
        step: Steps done, as far as the event log knows.
        world_size: Workers of the last attempt, if one began.
    """

    folder: Place
    state: State
    why: str | None
    step: int
    max_steps: int
    loss: float | None
    world_size: int | None
    attempts: int
    started: str


def list_runs(storage: Place) -> list[Place]:
    """Folders of runs below a storage path, by name."""
    # A hidden one is a clone that was not finished.
    found: Iterable[Place] = storage.glob("[!.]*/record/run.json")
    return sorted((path.parent.parent for path in found), key=str)


def inspect(folder: Place) -> ListedRun:
    """The state of a run.

    Raises:
        UsageError: The folder is not a run's.
        Malformed: Its record or event log was changed into something that does not parse.
    """
    return listed(folder, read_record(folder), LogSummary.of(events.read(folder)))


def listed(folder: Place, record: RunRecord, log: LogSummary) -> ListedRun:
    """The state of a run whose record and log are read."""
    state, why = _state(folder, record, log)
    return ListedRun(
        folder=folder,
        state=state,
        why=why,
        step=log.step,
        max_steps=record.plan.max_steps,
        loss=log.loss,
        world_size=log.world_size,
        attempts=log.attempts,
        started=format_time(record.started),
    )


def _state(folder: Place, record: RunRecord, log: LogSummary) -> tuple[State, str | None]:
    if driving(folder):
        return ("stopping" if STOP.made(folder) else "running"), None
    if (folder / MODEL).is_dir():
        return "attested", None
    if record.finished:
        return "finished", None
    return log.ended or "interrupted", log.why


def workers(folder: Place) -> list[events.WorkerStarted]:
    """The processes of the last attempt, by rank."""
    read_record(folder)
    found: dict[int, events.WorkerStarted] = {}
    for event in events.read(folder):
        if isinstance(event, events.AttemptStarted):
            found.clear()
        elif isinstance(event, events.WorkerStarted):
            found[event.rank] = event
    return [found[rank] for rank in sorted(found)]


def find_unfinished(experiment: Experiment, submission: Submission | None = None) -> Place | None:
    """The newest run of exactly this experiment that can be resumed, if there is one.

    Such a run has an equal experiment, equal inputs and the same code. It is not attested yet and
    has no driver. Nobody submitted it.

    A submission has one run, which is found by its name in whatever state it is. So a job that is
    started again never begins a second one.
    """
    if submission is not None:
        own = place(experiment.storage_path).resolve() / submission.run_of(experiment.name)
        return own if (own / "record" / "run.json").is_file() else None
    for folder in reversed(list_runs(place(experiment.storage_path).resolve())):
        try:
            record = read_record(folder)
        except (GovrayError, OSError):
            continue
        if (
            record.experiment
            and record.experiment.trains_as(experiment)
            and record.replay_of is None
            and record.submission is None
            and not (folder / MODEL).is_dir()
            and not driving(folder)
            and not changed(record, experiment)
            and _same_source(record, experiment)
        ):
            return folder
    return None


def _same_source(record: RunRecord, experiment: Experiment) -> bool:
    try:
        import_named(experiment.entrypoint.split(":")[0])
    except ImportError:
        return False
    recorded, found = record.environment.source, source_of(find_unfinished, experiment.entrypoint)
    return (recorded and recorded.digest) == (found and found.digest)


def require_there(experiment: Experiment) -> None:
    """Raise what training would, if a package, its key or a signed document that it begins with is
    missing. It takes no time, and Ray's start does."""
    require_extras(experiment)
    operator_key.require(experiment.attestation_key)
    read(place(experiment.governance.trust_root), "trust root")
    read(place(experiment.governance.policy), "signed policy")


def changed(record: RunRecord, experiment: Experiment) -> list[str]:
    """The inputs that changed since the run recorded them, by name.
    Signed documents are compared by payload, so another signature changes nothing."""
    files = experiment.governance
    policy = read(place(files.policy), "signed policy")
    root = read(place(files.trust_root), "trust root")
    delegations = [read(place(path), "delegation") for path in files.delegations]
    found = [f"policy {files.policy}"] if _payload(policy) != _payload(record.policy) else []
    if _payload(root) != _payload(record.root):
        found.append(f"trust root {files.trust_root}")
    if {*map(_payload, delegations)} != {*map(_payload, record.delegations)}:
        found.append("delegations")
    now = _payloads(read_credentials(place(experiment.data.corpora)))
    then = _payloads(record.credentials)
    found += [
        f"credential {name}" for name in sorted(now | then) if now.get(name) != then.get(name)
    ]
    return found + _other_code(record)


def _other_code(record: RunRecord) -> list[str]:
    return [_GOVRAY] if record.environment.code_digest != code_digest() else []


def refuse_changes(record: RunRecord, experiment: Experiment, allowed: Allowed) -> None:
    """Refuse to resume a run with inputs other than those it began with."""
    _refuse(record, changed(record, experiment), allowed)


def refuse_other_code(record: RunRecord, allowed: Allowed) -> None:
    """Refuse to resume a run under another govray than the one that began it."""
    _refuse(record, _other_code(record), allowed)


def _refuse(record: RunRecord, found: Sequence[str], allowed: Allowed) -> None:
    if names := [each for each in found if each not in (allowed or ())]:
        do = "Restore what it began with, or start a new run with --new"
        if allowed is not None and {*names} <= OTHER_CODE:
            do += "; `govray runs resume --other-code` goes on, and its model says so"
        what = f"changed since the run began: {', '.join(names)}"
        raise Refused(what, where=f"run {record.run_id}", do=do)


def same_code(record: RunRecord, made: RunRecord) -> bool:
    """Whether both are of one code, of govray and of the model or loop."""
    return record.code == made.code and _comparable(record)[_SOURCE] == _comparable(made)[_SOURCE]


def earlier_code(
    earlier: Sequence[EarlierCode], log: Sequence[events.AnyEvent]
) -> tuple[EarlierCode, ...]:
    """The earlier code, each up to the step from which other code ran. Where a commit was damaged,
    or the run rolled back, that was before the commit with which the run went on.

    Args:
        earlier: As the run's record has it, which was so at its last change of code.
    """
    reach: float = math.inf
    for event in log:
        if isinstance(event, events.OtherCode):
            reach = math.inf
        elif isinstance(event, events.AttemptStarted):
            reach = min(reach, event.step)
    kept: dict[int, EarlierCode] = {}
    for each in earlier:
        if step := int(min(each.step, reach)):  # else none of its steps is left
            kept.setdefault(step, each.model_copy(update={"step": step}))
    return tuple(kept.values())


def refuse_other_submission(record: RunRecord, submission: Submission | None) -> None:
    """Refuse to resume a run for another submission than its own.
    ``submission``: whose job wants to go on with it; None if somebody started it by hand."""
    if record.submission == submission:
        return
    of, by = (f"submission {each.id}" if each else "" for each in (record.submission, submission))
    what = f"the run was begun by {of or 'hand'}, and this job is of {by or 'no submission'}"
    raise Refused(
        f"{of} is stated otherwise than when its run began" if of == by else what,
        where=f"run {record.run_id}",
        do="A run is continued by its own submission alone: resume that, or start a new run",
    )


def refuse_other_run(record: RunRecord, made: RunRecord, allowed: Allowed) -> None:
    """Refuse to resume a run whose plan, model or data would differ today.
    ``made``: what a run that began now would record."""
    then, now = (_comparable(each) for each in (record, made))
    names = [name for name in then if then[name] != now[name]]
    if record.ema != made.ema:
        names.append("the average of the weights")
    _refuse(record, names, allowed)


def _comparable(record: RunRecord) -> dict[str, object]:
    source = record.environment.source
    return {
        "layer groups": record.groups,
        "batch plan": record.plan,
        "prepared data": record.manifest,
        "validation data": record.validation,
        "settings": _settings(record.config),
        "pretrained start": record.start,
        _SOURCE: (source.module, source.digest) if source else None,
    }


def _settings(config: Mapping[str, Any]) -> bytes:
    """Those of an experiment, with a default for each field that its govray did not have yet."""
    with suppress(ValidationError):
        config = Experiment.model_validate(config).model_dump(mode="json", exclude=APART)
    return canonical_json.encode(dict(config))


def _payloads(envelopes: Mapping[str, bytes]) -> dict[str, str]:
    return {name: _payload(data) for name, data in envelopes.items()}


def _payload(data: bytes) -> str:
    return canonical_json.sha256(Envelope.parse(data).payload)
