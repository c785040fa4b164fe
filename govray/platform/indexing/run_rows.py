"""Metrics and decisions of one run, into their tables."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from sqlalchemy import bindparam, delete, func, insert, select, update
from sqlmodel import Session, col

from govray.governance.formats import canonical_json
from govray.governance.record.e_process import least_odds
from govray.governance.record.entropy_profile import EntropyProfile
from govray.platform.store import tables
from govray.storage.place import Place
from govray.storage.regular_file import open_regular
from govray.train.run_folder.event_rows import Decided, MetricValue
from govray.train.run_folder.ledger_wal import FILE as WRITE_AHEAD

COARSE = 1000
"""Numbers of the coarsest resolution at most."""


Steps = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


def resolutions(steps: Steps, values: Values) -> tuple[npt.NDArray[np.int64], int]:
    """The resolution that each number of a line is first in, 0 the coarsest; and their number.

    A part of 1/2^r of the line is drawn from resolutions 0 to r.

    Args:
        steps: Ascending.
        values: Finite, as many.
    """
    kept, found = np.arange(len(steps)), np.zeros(len(steps), dtype=np.int64)
    halved = 0
    while len(kept) > COARSE:
        stay = thinned(steps[kept], values[kept], halved)
        if stay is None:
            break
        halved += 1
        kept = kept[stay]
        found[kept] = halved
    return halved - found, halved


def resolutions_of_end(
    steps: Steps, values: Values, halved: int, *, first: bool
) -> npt.NDArray[np.int64]:
    """The resolutions of a line's end, where the line is halved so often.

    Args:
        steps, values: From a multiple of 2^(halved + 1) on; as `resolutions`.
        halved: As `resolutions` and `thinned` brought it about.
        first: Whether nothing of the line is before.
    """
    kept, found = np.arange(len(steps)), np.zeros(len(steps), dtype=np.int64)
    for level in range(halved):
        stay = thinned(steps[kept], values[kept], level, first=first)
        kept = kept if stay is None else kept[stay]
        found[kept] = level + 1
    return halved - found


def thinned(
    steps: Steps, values: Values, halved: int, *, first: bool = True
) -> npt.NDArray[np.int64] | None:
    """Which numbers of the coarsest resolution are in the next; None: all lie in one stretch.

    Args:
        steps, values: As `resolutions`.
        halved: How often the line is halved so far.
        first: Whether the first number stays, whatever it is.
    """
    stretch = steps >> (halved + 2)
    order = np.lexsort((values, stretch))
    begins = np.flatnonzero(np.diff(stretch, prepend=-1))
    if len(begins) <= 1:
        return None
    ends = np.append(begins[1:], len(steps)) - 1
    newest = np.arange(begins[-1], len(steps))
    stay: npt.NDArray[np.int64] = np.unique(
        np.concatenate([order[begins], order[ends], newest, [0] if first else begins[:0]])
    )
    return stay


MONITOR, SEARCH = "monitor", "search"
"""Groups whose numbers belong to no attempt of a run's event log."""

_Line: TypeAlias = tuple[str, str]
"""Group and name."""

_PROFILE = b'"kind":"entropyProfile"'
# A canonical leaf begins with its branch and has one field named step.
_PLACE = re.compile(rb'\{"branch":(\d+),')
_FIRST = re.compile(rb'"step":(\d+)')


@dataclass(frozen=True)
class Profiles:
    """What the monitor measured: a bound of the odds for each corpus and layer, branch by branch.

    Attributes:
        numbers: Of each profile, in the order of the file, of which no profile is moved.
        branches: How many branches began.
        cut: Whether there is more than was read.
    """

    numbers: tuple[tuple[MetricValue, ...], ...] = ()
    branches: int = 0
    cut: bool = False


def profiles(folder: Place, most: int) -> Profiles:
    """Those of the write-ahead file's first ``most`` bytes."""
    path = folder / WRITE_AHEAD
    if not path.is_file():
        return Profiles()
    begins: dict[int, int] = {}
    found: list[EntropyProfile] = []
    with open_regular(path) as lines:
        while most > 0 and (line := lines.readline(most)):
            most -= len(line)
            if not line.endswith(b"\n"):
                continue  # being written, or cut off
            if _PROFILE in line:
                found.append(EntropyProfile.from_json(canonical_json.parse(line[:-1])))
            elif (place := _PLACE.match(line)) and int(place[1]) not in begins:
                begins[int(place[1])] = int(_FIRST.findall(line)[-1])
    return Profiles(tuple(tuple(_bounds(each, begins)) for each in found), len(begins), most <= 0)


def _bounds(profile: EntropyProfile, begins: Mapping[int, int]) -> Iterator[MetricValue]:
    later = [step for branch, step in begins.items() if branch > profile.branch]
    for measure in profile.measures:
        yield MetricValue(
            group=MONITOR,
            name=f"{measure.corpus}/{measure.layer}",
            step=profile.step,
            attempt=profile.branch,
            value=least_odds([measure]),
            archived=any(step <= profile.step for step in later),
        )


class _Place(NamedTuple):
    group: str
    name: str
    step: int
    attempt: int


class _Held(NamedTuple):
    value: float
    archived: bool
    at: str | None
    resolution: int


def supersede(session: Session, run: str, began: Iterable[tuple[int, int]]) -> set[_Line]:
    """Archive what attempts that began superseded; returns the lines that have such numbers.

    Args:
        began: (Step, attempt) of each. Numbers of the monitor and of a search have no attempt.
    """
    m = tables.MetricRow
    touched: set[_Line] = set()
    # Of all that others began, the earliest supersedes what any does: one for its own numbers.
    first = min(began := [*began], default=None)
    others = min((each for each in began if first and each[1] != first[1]), default=None)
    for step, attempt in filter(None, (first, others)):
        here = (
            col(m.run) == run, col(m.archived).is_(False), col(m.step) >= step,
            col(m.attempt) != attempt, col(m.group).not_in((MONITOR, SEARCH)),
        )  # fmt: skip
        rows = session.execute(select(col(m.group), col(m.name)).where(*here).distinct())
        touched |= {(group, name) for group, name in rows}
        session.connection().execute(update(m).where(*here).values(archived=True))
    return touched


def put_numbers(
    session: Session,
    run: str,
    numbers: Sequence[MetricValue],
    lines: dict[str, int],
    touched: Collection[_Line] = (),
) -> None:
    """Put numbers beside those that are there, or in the place of the same. No row is deleted.

    Of a line that grows at its end the newest rows are read, and the coarsest if these become too
    many. A line with changes further back is read whole.

    Infinities and NaN are left out: not every JSON reader accepts them.

    Args:
        session: The caller commits.
        run: Its id.
        numbers: At any places, each once.
        lines: How often each line is halved so far, by its name; it is brought up to date.
        touched: Lines whose rows were archived meanwhile.
    """
    new: dict[_Line, dict[_Place, _Held]] = {each: {} for each in touched}
    for number in numbers:
        if math.isfinite(number.value):
            place = _Place(number.group, number.name, number.step, number.attempt)
            held = _Held(number.value, number.archived, number.at, 0)
            new.setdefault(place[:2], {})[place] = held
    for line, rows in new.items():
        _put_line(session, run, line, rows, lines, whole=line in touched)


def _put_line(
    session: Session,
    run: str,
    line: _Line,
    rows: Mapping[_Place, _Held],
    lines: dict[str, int],
    *,
    whole: bool,
) -> None:
    m = tables.MetricRow
    key = canonical_json.encode([*line]).decode()
    halved = lines.get(key, 0)
    of_line = (col(m.run) == run, col(m.group) == line[0], col(m.name) == line[1])
    counting = (*of_line, col(m.archived).is_(False))
    newest = session.scalar(select(func.max(col(m.step))).where(*counting))
    begin = 0 if newest is None or whole else newest >> (halved + 1) << (halved + 1)
    if any(place.step < begin for place in rows):
        begin = 0
    held = _held(session, *of_line, col(m.step) >= begin)
    put = dict(held)
    for place, row in rows.items():
        before = put.get(place)
        now = row._replace(resolution=before.resolution) if before else row
        if now != before:
            put[place] = now
    if put == held and not whole:
        return
    drawn = sorted((place.step, place) for place, row in put.items() if not row.archived)
    steps = np.array([step for step, _ in drawn], dtype=np.int64)
    values = np.array([put[place].value for _, place in drawn])
    if begin == 0:
        found, halved = resolutions(steps, values)
    else:
        earlier = select(col(m.step)).where(*counting, col(m.step) < begin).limit(1)
        first = session.scalar(earlier) is None
        found = resolutions_of_end(steps, values, halved, first=first)
    for (_, place), resolution in zip(drawn, found.tolist(), strict=True):
        if put[place].resolution != resolution:
            put[place] = put[place]._replace(resolution=resolution)
    _write(session, run, held, put)
    while begin and _halve(session, of_line, halved):
        halved += 1
    lines.pop(key, None)
    if halved:
        lines[key] = halved


def _halve(session: Session, of_line: Sequence[Any], halved: int) -> bool:
    """Move numbers of the coarsest resolution to the next, if they are too many."""
    m = tables.MetricRow
    counting = (*of_line, col(m.archived).is_(False))
    coarse = (*counting, col(m.resolution) == 0)
    count = session.scalar(select(func.count()).select_from(m).where(*coarse)) or 0
    if count <= COARSE:
        return False
    columns = select(col(m.step), col(m.value), col(m.attempt)).where(*coarse)
    rows = session.execute(columns.order_by(col(m.step))).all()
    steps = np.array([step for step, *_ in rows], dtype=np.int64)
    stay = thinned(steps, np.array([value for _, value, _ in rows]), halved)
    if stay is None:
        return False
    write = session.connection().execute
    write(update(m).where(*counting).values(resolution=col(m.resolution) + 1))
    write(
        update(m)
        .where(*of_line, col(m.step) == bindparam("of_step"), col(m.attempt) == bindparam("of_try"))
        .values(resolution=0),
        [{"of_step": rows[at].step, "of_try": rows[at].attempt} for at in stay.tolist()],
    )
    return True


def _held(session: Session, *where: Any) -> dict[_Place, _Held]:
    m = tables.MetricRow
    rows = session.execute(
        select(
            col(m.group), col(m.name), col(m.step), col(m.attempt),
            col(m.value), col(m.archived), col(m.at), col(m.resolution),
        ).where(*where)
    )  # fmt: skip
    return {_Place(*row[:4]): _Held(*row[4:]) for row in rows}


def _write(
    session: Session, run: str, held: Mapping[_Place, _Held], put: Mapping[_Place, _Held]
) -> None:
    m = tables.MetricRow
    new = [
        {"run": run, **place._asdict(), **row._asdict()}
        for place, row in put.items()
        if place not in held
    ]
    other = [
        {f"of_{name}": value for name, value in place._asdict().items()} | row._asdict()
        for place, row in put.items()
        if place in held and row != held[place]
    ]
    if new:
        session.connection().execute(insert(m), new)
    if other:
        places = [getattr(m, name) == bindparam(f"of_{name}") for name in _Place._fields]
        session.connection().execute(
            update(m)
            .where(col(m.run) == run, *places)
            .values({name: bindparam(name) for name in _Held._fields}),
            other,
        )


def best(session: Session, run: str, metric: str, goal: str) -> float | None:
    """The best value of a metric that counts: ``validation/loss``, or ``f1`` of the loop's own."""
    m = tables.MetricRow
    group, _, name = metric.rpartition("/")
    reach = func.min(col(m.value)) if goal == "min" else func.max(col(m.value))
    found: float | None = session.scalar(
        select(reach).where(
            col(m.run) == run, col(m.group) == (group or "training"), col(m.name) == name,
            col(m.archived).is_(False),
        )
    )  # fmt: skip
    return found


def put_decisions(
    session: Session, run: str, source: str, made: Sequence[Decided], *, after: int = 0
) -> None:
    """Put the decisions of one source in the place of those from number ``after`` on."""
    number = col(tables.DecisionRow.number)
    of_source = (col(tables.DecisionRow.source) == source, number >= after)
    session.connection().execute(
        delete(tables.DecisionRow).where(col(tables.DecisionRow.run) == run, *of_source)
    )
    rows = [
        {"run": run, "source": source, "number": number, **asdict(each)}
        for number, each in enumerate(made, after)
    ]
    if rows:
        session.connection().execute(insert(tables.DecisionRow), rows)
