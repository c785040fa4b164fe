"""A run's event log: what happened to the run, beside what it did.

``<run>/events.jsonl`` holds one event a line, canonical JSON, oldest first: attempts, failures,
restarts, stops, resizes, progress. The ledger records what was trained on. It has no clock, attempt
or host, so that replays can be compared. This log has them; it is never signed, and no Merkle root
covers it.

Invariants:

* Lines are appended, never changed. A last line that a crash cut off is passed over by `read` and
  removed by the next `append`.
* A log of any length is read. Behind `PART_BYTES` it goes on in ``events.1.jsonl``, then in
  ``events.2.jsonl`` and so on. A part that another follows never changes again, its name neither.
* Driver and rank 0 append to one log: an append holds the lock of its first file. On
  an object store it writes the last part anew, if nobody else has since it was read.

To add a kind, write a class with a ``kind`` and what it ``says``, and name it in `AnyEvent`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from itertools import count, takewhile
from pathlib import Path
from typing import Annotated, BinaryIO, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, PlainSerializer, RootModel, ValidationError

from govray.errors import Malformed
from govray.governance.formats import canonical_json
from govray.governance.formats.bounds import Natural
from govray.governance.formats.document import Digest, Document, Timestamp
from govray.governance.record.entropy_profile import MonitorDecision
from govray.governance.record.gates import Gate
from govray.storage.atomic_file import sync_folder
from govray.storage.bucket import Replaced
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place
from govray.storage.regular_file import open_regular, read_regular

FILE = "events.jsonl"
MAX_LINE = 1 << 16
PART_BYTES = 64 << 20
"""A file of this size is followed by another."""
OBJECT_BYTES = 1 << 17
"""Of an object store. An append sends all that the part has."""

Text = Annotated[str, Field(max_length=4096)]

MAX_NAME = 128
MetricName = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]

Number = Annotated[
    float,
    BeforeValidator(lambda value: float(value) if isinstance(value, str) else value),
    PlainSerializer(lambda value: value if abs(value) < 2.0**53 else repr(value)),
]
"""Canonical JSON has no numbers from 2^53 to 1e21, so those stand as text."""


class Event(Document):
    """One thing that happened, and when, by the clock of the machine that wrote it."""

    at: Timestamp
    says: ClassVar[str]

    @property
    def text(self) -> str:
        """One line for people, without the time; by default ``says``, with the fields filled in."""
        return self.says.format_map(vars(self))


class DriverStarted(Event):
    """A driver took the run: it is new, or its last driver is gone.
    ``alone``: it works on a cluster that it, or its search, started for itself."""

    kind: Literal["driverStarted"] = "driverStarted"
    says = "driver {driver} took the run, process {pid} on {host}"
    driver: Natural
    host: Text
    pid: Natural
    alone: bool = False


class AttemptStarted(Event):
    """A group of workers started. ``step`` is the first that it runs."""

    kind: Literal["attemptStarted"] = "attemptStarted"
    says = "attempt {attempt} from step {step} with {world_size} workers"
    attempt: Natural
    world_size: Natural
    step: Natural


class ResizeWanted(Event):
    """There is room for another number of workers: they commit and are replaced."""

    kind: Literal["resizeWanted"] = "resizeWanted"
    says = "room for {after} workers instead of {before}: commit, then resize"
    before: Natural
    after: Natural


class WorkersLimited(Event):
    """The queue allows another number of workers: it needs slots, or gives them again."""

    kind: Literal["workersLimited"] = "workersLimited"
    most: Natural

    @property
    def text(self) -> str:
        return f"the queue allows {self.most} worker{'s' * (self.most != 1)} at most"


class LimitIgnored(Event):
    """What should say how many workers the queue allows does not. The limit before it holds."""

    kind: Literal["limitIgnored"] = "limitIgnored"
    says = "a limit of workers is ignored, and nothing changes: {what}"
    what: Text


class WorkerStarted(Event):
    """One worker of an attempt, its node by Ray's id, and the file of its output, if it is one."""

    kind: Literal["workerStarted"] = "workerStarted"
    says = "attempt {attempt}, rank {rank}: process {pid} on {host}"
    attempt: Natural
    rank: Natural
    host: Text
    pid: Natural
    node: Text | None = None
    log: Text | None = None


class Failed(Event):
    """An attempt ended in an error; ``decision`` is what followed.

    Attributes:
        failure: ``infrastructure``, ``user`` or ``refused``; see `govray.train.driver.failures`.
        rank: The rank that failed first, where one is known.
        step: The first step that was not recorded when it happened.
        what: The error's own text.
    """

    kind: Literal["failed"] = "failed"
    attempt: Natural
    failure: Literal["infrastructure", "user", "refused"]
    rank: Natural | None = None
    step: Natural
    what: Text
    decision: Literal["restart", "stop"]

    @property
    def text(self) -> str:
        who = "" if self.rank is None else f", rank {self.rank}"
        return f"attempt {self.attempt} failed ({self.failure}{who}): {self.what} → {self.decision}"


class Progress(Event):
    """How far the run is, now and then: the last step done, and its mean loss if it has one."""

    kind: Literal["progress"] = "progress"
    step: Natural
    loss: Number | None = None

    @property
    def text(self) -> str:
        loss = "" if self.loss is None else f", loss {self.loss:.3f}"
        return f"step {self.step} done{loss}"


class Committed(Event):
    """A checkpoint is whole. ``step`` is where it resumes, ``digest`` its manifest's."""

    kind: Literal["committed"] = "committed"
    says = "checkpoint of step {step} committed"
    step: Natural
    digest: Digest


class Reported(Event):
    """What the training loop itself measured after a step; see `loop_metrics`."""

    kind: Literal["reported"] = "reported"
    attempt: Natural
    step: Natural
    group: MetricName
    values: Annotated[dict[MetricName, Number], Field(min_length=1)]

    @property
    def text(self) -> str:
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.values.items())
        return f"step {self.step} done, {self.group}: {values}"


class EndedEarly(Event):
    """The metric that a run is judged by got no better, so the run ends after this commit.

    ``step`` is how many steps it has, ``best`` the best value, of the state after ``best_step``.
    """

    kind: Literal["endedEarly"] = "endedEarly"
    step: Natural
    metric: MetricName
    best: float | None = None
    best_step: Natural
    validations: Natural

    @property
    def text(self) -> str:
        best = "" if self.best is None else f" than {self.best:.4g} after {self.best_step} steps"
        return (
            f"ends early after {self.step} steps: {self.metric} was no better{best} in "
            f"{self.validations} validations"
        )


class StopRequested(Event):
    """Somebody asked the run to stop after a commit."""

    kind: Literal["stopRequested"] = "stopRequested"
    says = "stop requested by {by}"
    by: Text


class Stopped(Event):
    """The run stopped as requested; ``step`` is where it resumes."""

    kind: Literal["stopped"] = "stopped"
    says = "stopped at step {step}"
    step: Natural


class Killed(Event):
    """Somebody ended the driver without waiting."""

    kind: Literal["killed"] = "killed"
    says = "killed by {by}"
    by: Text


class Finished(Event):
    """The last step is committed."""

    kind: Literal["finished"] = "finished"
    says = "finished after {step} steps"
    step: Natural


class Gated(Event):
    """From this step on the run leaves a corpus out, because its credential no longer holds."""

    kind: Literal["gated"] = "gated"
    says = "{gate.corpus} left out from step {gate.step} on: {gate.reason} at {gate.since}"
    gate: Gate


class Memorized(Event):
    """A corpus deviates from its reserve, and the policy's action follows."""

    kind: Literal["memorized"] = "memorized"
    decision: MonitorDecision

    @property
    def text(self) -> str:
        made = self.decision
        follows = {
            "gate": f"left out from step {made.step + 1} on"
            if made.fallback is None
            else f"rerouted to {made.fallback} from step {made.step + 1} on",
            "rollback": f"rolled back, and left out from step {made.since} on",
        }.get(made.action, made.followed)
        return (
            f"{made.corpus} deviates from its reserve after step {made.step} "
            f"({', '.join(made.layers)}): {follows}"
        )


class LogMatched(Event):
    """A line of a process's log fits a pattern of the experiment file.
    ``node``: the process's, where no later attempt may start on it."""

    kind: Literal["logMatched"] = "logMatched"
    log: Text
    pattern: Text
    action: Literal["stop", "flag", "no_retry", "exclude_node"]
    line: Text
    node: Text | None = None

    @property
    def text(self) -> str:
        follows = {
            "stop": "the run is to stop",
            "no_retry": "no attempt follows a failure",
            "exclude_node": f"no later attempt starts on node {self.node}",
            "flag": "flagged",
        }[self.action]
        return f"{self.log} has {self.pattern!r}: {follows} ({self.line[:200]})"


class OtherCode(Event):
    """The run goes on under other code than its steps so far."""

    kind: Literal["otherCode"] = "otherCode"
    says = "goes on under other code: bits are comparable up to step {step}"
    step: Natural


class Attested(Event):
    """The model folder is signed."""

    kind: Literal["attested"] = "attested"
    says = "attested"


AnyEvent: TypeAlias = (
    DriverStarted
    | AttemptStarted
    | ResizeWanted
    | WorkersLimited
    | LimitIgnored
    | WorkerStarted
    | Failed
    | Progress
    | Committed
    | Reported
    | EndedEarly
    | StopRequested
    | Stopped
    | Killed
    | Finished
    | Attested
    | Gated
    | Memorized
    | LogMatched
    | OtherCode
)


class _EventLine(RootModel[Annotated[AnyEvent, Field(discriminator="kind")]]):
    pass


def append(run_folder: Place, *new: AnyEvent) -> None:
    """Write events behind the others, on the disk when this returns."""
    line = b"".join(canonical_json.encode(event.to_json()) + b"\n" for event in new)
    if isinstance(run_folder, BucketPath):
        _append_object(run_folder, line)
        return
    with (run_folder / FILE).open("a+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        number = len(_parts(run_folder))
        with (run_folder / _name(number - 1)).open("a+b") as last:
            _drop_cut_line(last.fileno())
            full = os.fstat(last.fileno()).st_size >= PART_BYTES
            if not full:
                _write(last, line)
        if full:
            with (run_folder / _name(number)).open("a+b") as following:
                _write(following, line)


def excluded_nodes(run_folder: Place) -> frozenset[str]:
    """The nodes on which no attempt may start any more."""
    log = read(run_folder)
    return frozenset(each.node for each in log if isinstance(each, LogMatched) and each.node)


def _append_object(run_folder: BucketPath, line: bytes) -> None:
    """Write the last part anew with the line behind it, unless it changed meanwhile: then again."""
    number = max(0, len(_parts(run_folder)) - 1)
    while True:
        part = run_folder / _name(number)
        try:
            held, tag = part.read_stamped()
        except FileNotFoundError:
            held, tag = b"", None
        if len(held) >= OBJECT_BYTES:
            number += 1
            continue
        try:
            _ = part.create(line) if tag is None else part.swap(held + line, tag)
        except (FileExistsError, Replaced):
            continue
        return


def read(run_folder: Place) -> tuple[AnyEvent, ...]:
    """Every whole event, oldest first; none if there is no log."""
    # What is appended to a newer part from now on comes behind what is read.
    return tuple(event for part in _parts(run_folder) for event in _events(part))


def read_from(run_folder: Place, start: int) -> Iterator[tuple[int, AnyEvent]]:
    """The whole events behind the first ``start`` bytes, each with how many bytes that makes.

    Raises:
        Malformed: As `read`; a line without end is too long.
    """
    begun = 0
    for part in _parts(run_folder):
        held = part.stat().st_size
        if begun + held > start:
            yield from _part_from(part, begun, max(start - begun, 0))
        begun += held


def _part_from(part: Place, begun: int, skipped: int) -> Iterator[tuple[int, AnyEvent]]:
    with open_regular(part) as lines:
        lines.seek(skipped)
        while line := lines.readline(MAX_LINE + 2):
            if not line.endswith(b"\n") and len(line) <= MAX_LINE:
                return  # being written, or cut off
            event = _event(line[:-1], f"{part} byte {skipped}")
            skipped += len(line)
            yield begun + skipped, event


def size(run_folder: Place) -> int:
    """Bytes of the log, all parts together."""
    return sum(part.stat().st_size for part in _parts(run_folder))


def _parts(run_folder: Place) -> list[Place]:
    """The files of the log that are there, oldest first."""
    return list(
        takewhile(lambda part: part.is_file(), (run_folder / _name(number) for number in count()))
    )


def _name(number: int) -> str:
    return f"events.{number}.jsonl" if number else FILE


def _write(file: BinaryIO, line: bytes) -> None:
    first = not os.fstat(file.fileno()).st_size
    file.write(line)
    file.flush()
    os.fsync(file.fileno())
    if first:
        sync_folder(Path(file.name).parent)


def _events(part: Place) -> Iterator[AnyEvent]:
    for number, line in enumerate(read_regular(part).split(b"\n")[:-1], 1):
        yield _event(line, f"{part} line {number}")


def _event(line: bytes, where: str) -> AnyEvent:
    canonical_json.parse_canonical(line, limit=MAX_LINE, where=where)
    try:
        return _EventLine.model_validate_json(line, by_alias=True, by_name=False).root
    except ValidationError as error:
        [problem, *_] = error.errors(include_url=False, include_input=False)
        raise Malformed(
            f"not an event: {problem['msg']}", where=where, do="Was it written by a newer govray?"
        ) from None


def _drop_cut_line(descriptor: int) -> None:
    """Cut the file behind its last newline."""
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, min(size, MAX_LINE), max(0, size - MAX_LINE))
    if not tail.endswith(b"\n"):
        os.ftruncate(descriptor, size - len(tail) + tail.rfind(b"\n") + 1)
