"""Run folders as rows: experiments, runs, metrics, checkpoints, decisions, and their models.

Invariants

* Each run is one transaction: after a kill, the next call goes on with the others. Indexing again
  changes nothing that is still so. What is new of an event log is read, and of the store's numbers
  what that touches.
* A writer of the storage makes nobody wait. A call reads so much of one folder and lasts
  so long (`IndexBudget`). The report has what it did not come to, which is the next call's.
* States change by `govray.platform.store.states.advance` alone. What happened between two calls is
  assumed to have passed through ``RUNNING``.
* A model that does not verify is reported and left out, and stops nothing else. Its run stays
  indexed: the run's record does not depend on the model. The model of a run that is left out is
  left out too.
* A submitter can write anything into its folder, and other folders beside it. So what a
  folder claims gives no rights. Project and user are those of the queue's row
  (`govray.platform.store.run_owners`), or else those of `IndexSettings`. A name is its folder's
  own.

Rows of what storage no longer has are not removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InvalidRequestError,
    ProgrammingError,
)
from sqlmodel import Session, col, select

from govray.errors import GovrayError, Refused
from govray.governance.attestation.model_folder import MODEL
from govray.governance.formats import canonical_json
from govray.governance.formats.document import format_time
from govray.governance.formats.dsse import Envelope
from govray.governance.trust.anchor import TrustAnchor
from govray.platform.indexing.checkpoint_rows import found_on_storage, put_checkpoints
from govray.platform.indexing.indexed_search import IndexedSearch, SearchTrial
from govray.platform.indexing.log_reading import IndexBudget, LogReading
from govray.platform.indexing.model_rows import MEMORIZATION, index_run_audit, index_run_model
from govray.platform.indexing.run_claims import (
    REPLAYS,
    entry,
    refuse_another_place,
    refuse_false_claim,
    submitted,
)
from govray.platform.indexing.run_rows import (
    best,
    profiles,
    put_decisions,
    put_numbers,
)
from govray.platform.store import tables
from govray.platform.store.database import begin_writing
from govray.platform.store.run_owners import first_tags, settle
from govray.platform.store.states import (
    RUN,
    CheckpointState,
    ExperimentState,
    RunState,
    advance,
)
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place
from govray.train.inputs import run_listing as runs
from govray.train.inputs.experiment_config import LONGEST_DESCRIPTION, LONGEST_NOTES
from govray.train.inputs.run_record import RunRecord, read_record
from govray.train.run_folder import events
from govray.train.run_folder.run_lock import driving

_RUN_STATES: Mapping[str, RunState] = {
    "running": RunState.RUNNING,
    "stopping": RunState.STOPPING,
    "stopped": RunState.STOPPED,
    "finished": RunState.COMPLETED,
    "attested": RunState.COMPLETED,
    "failed": RunState.ERROR,
    "killed": RunState.KILLED,
    "interrupted": RunState.INTERRUPTED,
}
_ENDED = RunState.COMPLETED


LEFT_OUT = (
    GovrayError,
    OSError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    DataError,
    IntegrityError,
    InvalidRequestError,
    ProgrammingError,
)
"""What somebody's folder may raise where it is read, and where its values go into the store.

PostgreSQL holds neither U+0000 nor every whole number. A store that is gone is not among these."""


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """What the indexer must be told, because storage does not have it.

    Attributes:
        anchor: Reads what models are verified against. Called each time, because lists change.
        project, user: Owner of new experiments that no entry of the queue became.
        queue: The store with the queue, where that is not the one that is written: in a rebuild.
        budget: What one call may take.
        models: Where an attestor puts models, if not in the runs' own folders.
    """

    anchor: Callable[[], TrustAnchor]
    key: bytes
    project: str
    user: str
    queue: Engine | None = None
    budget: IndexBudget = field(default_factory=IndexBudget)
    models: Place | None = None


@dataclass
class IndexReport:
    """What one call indexed. ``left_out`` maps a folder to the reason.

    ``next`` is the folder that the next call has to begin with; None: all were looked at.
    ``behind`` are folders of which there is more to read.
    """

    indexed: set[str] = field(default_factory=set)
    models: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    next: str | None = None
    behind: set[str] = field(default_factory=set)

    @property
    def runs(self) -> int:
        """How many were indexed."""
        return len(self.indexed)

    def add(self, part: IndexReport) -> None:
        """Add what a later call indexed."""
        self.models += part.models
        self.behind = (self.behind - part.indexed - part.left_out.keys()) | part.behind
        self.indexed |= part.indexed
        self.left_out |= part.left_out
        self.next = part.next


def index_storage(
    engine: Engine,
    storage: Place,
    settings: IndexSettings,
    searches: Sequence[IndexedSearch] = (),
    *,
    begin: str = "",
) -> IndexReport:
    """Index the runs below a storage path, those of ``searches`` and all replays.

    What cannot be read, or does not verify, is reported and left out.

    Args:
        engine: The store.
        storage: Of runs.
        settings: What has to be said besides.
        searches: Those that lie there.
        begin: The folder to begin with, up to the last: the last report's ``next``.
    """
    storage = storage.resolve()
    report, anchor = IndexReport(), settings.anchor()
    until = time.monotonic() + settings.budget.seconds
    due: list[tuple[Place, IndexedSearch | None]] = [
        (each, None) for each in runs.list_runs(storage)
    ]
    due += [(each, search) for search in searches for each in runs.list_runs(search.folder)]
    due = [each for each in sorted(due, key=lambda each: str(each[0])) if str(each[0]) >= begin]
    for done, (folder, search) in enumerate(due, 1):
        _index(engine, storage, folder, settings, anchor, search, report)
        if time.monotonic() > until and done < len(due):
            report.next = str(due[done][0])
            break
    for search in searches:
        with _reported(report, search.folder), Session(engine) as session:
            owner = submitted(session, settings.queue, search.folder.name)
            known = session.get(tables.ExperimentRow, owner.id if owner else search.folder.name)
            if known is not None:
                begin_writing(session)
                settle_search(session, known, search)
                session.commit()
    return report


def _index(
    engine: Engine,
    storage: Place,
    folder: Place,
    settings: IndexSettings,
    anchor: TrustAnchor,
    search: IndexedSearch | None,
    report: IndexReport,
) -> None:
    for each in (folder, *runs.list_runs(folder / REPLAYS)):
        with _reported(report, each), Session(engine) as session:
            if index_run(session, storage, each, settings, search).reading.get("more"):
                report.behind.add(str(each))
            session.commit()
            report.indexed.add(str(each))
        if str(each) in report.left_out:
            continue  # what is signed names a run, and this folder is not shown to be its own
        with _reported(report, each / MODEL), Session(engine) as session:
            report.models += index_run_model(session, each, anchor, settings.key, settings.models)
            session.commit()
        with _reported(report, each / MEMORIZATION), Session(engine) as session:
            index_run_audit(session, each, anchor)
            session.commit()


@contextmanager
def _reported(report: IndexReport, place: Place) -> Iterator[None]:
    """An error in one run, search, model or audit stops none of the others."""
    try:
        yield
    except LEFT_OUT as error:
        report.left_out[str(place)] = why_left_out(error)


def why_left_out(error: Exception) -> str:
    """Why a folder is left out, in words: those of a store's driver without the statement."""
    if isinstance(error, DBAPIError):
        said = str(error.orig).partition("\n")[0]
        return f"the store can't hold a value of it ({said})"
    return str(error) or type(error).__name__


def index_run(
    session: Session,
    storage: Place,
    folder: Place,
    settings: IndexSettings,
    search: IndexedSearch | None = None,
) -> tables.RunRow:
    """Write the rows of one run; the caller commits.

    Raises:
        Refused: Another run of this name is in the index, or its indexed state cannot change to
            this one. Or the folder claims to be another run, or that of another experiment.
    """
    begin_writing(session)
    # The size is taken first: what is written meanwhile is read again next time.
    size = events.size(folder)
    below = _below(folder, storage)
    of_folder = select(tables.RunRow).where(tables.RunRow.folder == below)
    here = col(tables.ExperimentRow.storage) == str(storage)
    known = session.exec(of_folder.join(tables.ExperimentRow).where(here)).first()
    if known and search is None and (known.state, known.read_bytes) == (_ENDED, size):
        put_checkpoints(session, known.id, found_on_storage(folder, writing=False), {})
        indexed = session.get_one(tables.ExperimentRow, known.experiment)
        if (owner := entry(session, settings.queue, indexed.id)) is not None:
            settle(indexed, owner)
        return known
    record = read_record(folder, settings.budget.file_bytes)
    refuse_another_place(
        session, settings.queue, record, below, search.folder.name if search else ""
    )
    told = search.trials.get(folder.name) if search else None
    experiment = _experiment(session, storage, record, settings, search)
    row = session.get(tables.RunRow, record.run_id)
    if row is not None and (row.folder, row.experiment) != (below, experiment.id):
        raise Refused(
            f"another run of the name {record.run_id} is in the index, at {row.folder}",
            where=str(folder),
            do="Names of runs are unique: one of the two is a copy; keep it out of the storage",
        )
    if row is None:
        row = _new_run(record, experiment, below, told)
        session.add(row)
        session.flush()
    reading = LogReading.of(row, size)
    new = reading.read(folder, settings.budget)
    log = reading.log
    found = runs.listed(folder, record, log)
    commits = found_on_storage(folder, writing=found.state in ("running", "stopping"))
    state = told.state if told and told.state else _RUN_STATES[found.state]
    whole = [at for at, each in commits.items() if each.state is CheckpointState.COMPLETED]
    done = max([found.step, *whole])
    ended: str | None = None
    if record.replay_of and state is RunState.INTERRUPTED and done == record.plan.max_steps:
        state = RunState.COMPLETED  # a replay's end is not signed
        ended = log.last or None
    if not reading.more:  # else what ended it may be told by the rest
        row.state = advance(RUN, row.state, state, f"run {row.id}")
    row.why = (told.why if told else None) or found.why
    row.step, row.loss = done, found.loss
    row.world_size, row.attempts = found.world_size, found.attempts
    row.finished = format_time(record.finished) if record.finished else ended
    row.worker_seconds = log.worker_seconds
    row.accelerator_seconds = row.worker_seconds * record.gpus_per_worker
    row.hyperparameters = _hyperparameters(record, told)
    session.add(row)
    session.flush()
    if new or told:
        reading.put(session, row.id, new, profiles(folder, settings.budget.file_bytes))
    if told:
        put_numbers(session, row.id, told.numbers, reading.lines)
        put_decisions(session, row.id, "search", told.decisions)
    put_checkpoints(session, row.id, commits, reading.commit_times(new))
    row.objective = told.objective if told else None
    if (judged := record.validation) and not told:
        row.objective = best(session, row.id, judged["metric"], judged["goal"])
    row.read_bytes, row.reading = reading.offset, reading.to_json()
    session.add(row)
    if search is None and record.replay_of is None:
        silent = row.state is RunState.INTERRUPTED
        experiment.state = ExperimentState.ERROR if silent else ExperimentState(row.state.value)
        experiment.finished = row.finished
        experiment.why = "its driver ended without a word" if silent else row.why
        session.add(experiment)
    return row


def _below(folder: Place, storage: Place) -> str:
    if isinstance(folder, BucketPath) and isinstance(storage, BucketPath):
        return folder.relative_to(storage)
    return str(Path(str(folder)).resolve().relative_to(Path(str(storage))))


def settle_search(session: Session, row: tables.ExperimentRow, search: IndexedSearch) -> None:
    """The state of a search, from its own record and its runs'."""
    if search.concluded:
        state = RunState.COMPLETED
    else:
        state = RunState.RUNNING if driving(search.folder) else RunState.STOPPED
    row.state = ExperimentState(advance(RUN, RunState(row.state.value), state, row.id).value)
    ended = select(tables.RunRow.finished).where(tables.RunRow.experiment == row.id)
    times = [at for at in session.exec(ended) if at]
    row.finished = max(times, default=None) if search.concluded else None
    session.add(row)


def _experiment(
    session: Session,
    storage: Place,
    record: RunRecord,
    settings: IndexSettings,
    search: IndexedSearch | None,
) -> tables.ExperimentRow:
    known: tables.ExperimentRow | None = None
    if record.replay_of is not None:  # counted where its run is
        replayed = session.get(tables.RunRow, record.replay_of)
        if replayed is not None:
            known = session.get_one(tables.ExperimentRow, replayed.experiment)
    name = search.folder.name if search else record.run_id
    if known is not None:
        owner = entry(session, settings.queue, known.id)
    else:
        owner = submitted(session, settings.queue, name)
        if owner is None:
            refuse_false_claim(session, settings.queue, record, name)
        known = session.get(tables.ExperimentRow, owner.id if owner else name)
    if known is not None:
        if known.storage != str(storage):
            raise Refused(
                f"an experiment of the name {known.id} is in the index, from {known.storage}",
                where=str(storage),
                do="Index one of the two; if it was moved, say `govray store rebuild`",
            )
        if owner is not None:
            settle(known, owner)
        return known
    given = record.experiment
    config = search.config if search else given.model_dump(mode="json") if given else record.config
    said = {
        name: text[:longest] if isinstance(text := config.get(name), str) else ""
        for name, longest in (("description", LONGEST_DESCRIPTION), ("notes", LONGEST_NOTES))
    }
    row = tables.ExperimentRow(
        **said,
        id=owner.id if owner else name,
        name=search.name if search else given.name if given else record.run_id,
        kind="tune" if search else "train",
        state=ExperimentState.RUNNING,
        project=settings.project,
        user=settings.user,
        storage=str(storage),
        config={
            name: value for name, value in config.items() if not name.startswith("attestation_key")
        },
        started=search.started if search else format_time(record.started),
    )
    if owner is not None:
        settle(row, owner)
    session.add(row)
    session.flush()
    if owner is None and settings.queue is None:
        first_tags(session, row)
    return row


def _new_run(
    record: RunRecord, experiment: tables.ExperimentRow, folder: str, told: SearchTrial | None
) -> tables.RunRow:
    return tables.RunRow(
        id=record.run_id,
        experiment=experiment.id,
        folder=folder,
        state=RunState.RUNNING,
        hyperparameters=_hyperparameters(record, told),
        step=0,
        max_steps=record.plan.max_steps,
        attempts=0,
        started=format_time(record.started),
        replay_of=record.replay_of,
        code=record.code,
        policy=canonical_json.sha256(Envelope.parse(record.policy).payload),
        manifest=record.plan.manifest,
    )


def _hyperparameters(record: RunRecord, told: SearchTrial | None) -> dict[str, Any]:
    """What was drawn for a run of a search; else model and optimizer, by dotted name."""
    if told is not None:
        return dict(told.values)
    if record.experiment is None:
        return {}
    sections = record.experiment.model_dump(mode="json", include={"hyperparameters", "optimizer"})
    return {
        f"{section}.{name}": value
        for section, values in sections.items()
        for name, value in values.items()
    }
