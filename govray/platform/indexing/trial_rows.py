"""Metrics and decisions of one trial, into their tables."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
from sqlalchemy import bindparam, delete, insert, select, update
from sqlmodel import Session, col

from govray.governance.formats import canonical_json
from govray.governance.record.entropy_profile import EntropyProfile
from govray.platform.indexing.resolutions import resolutions
from govray.platform.store import tables
from govray.storage.place import Place
from govray.storage.regular_file import open_regular
from govray.train.run_folder.event_rows import Decided, MetricValue
from govray.train.run_folder.ledger_wal import FILE as WRITE_AHEAD

_PROFILE = b'"kind":"entropyProfile"'
# A canonical leaf begins with its branch and has one field named step.
_PLACE = re.compile(rb'\{"branch":(\d+),')
_FIRST = re.compile(rb'"step":(\d+)')


def profiles(folder: Place) -> Iterator[MetricValue]:
    """What the monitor measured: a deviation for each corpus and layer, branch by branch."""
    path = folder / WRITE_AHEAD
    if not path.is_file():
        return
    begins: dict[int, int] = {}
    found: list[EntropyProfile] = []
    with open_regular(path) as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                continue  # being written, or cut off
            if _PROFILE in line:
                found.append(EntropyProfile.from_json(canonical_json.parse(line[:-1])))
            elif (place := _PLACE.match(line)) and int(place[1]) not in begins:
                begins[int(place[1])] = int(_FIRST.findall(line)[-1])
    for profile in found:
        later = [step for branch, step in begins.items() if branch > profile.branch]
        for measure in profile.measures:
            yield MetricValue(
                group="monitor",
                name=f"{measure.corpus}/{measure.layer}",
                step=profile.step,
                attempt=profile.branch,
                value=measure.deviation,
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


def put_numbers(session: Session, trial: str, numbers: Sequence[MetricValue]) -> None:
    """Add what is new and archive what was superseded. No row is deleted. Infinities and NaN are
    left out: not every JSON reader accepts them."""
    m = tables.Metric
    rows = session.execute(
        select(
            col(m.group), col(m.name), col(m.step), col(m.attempt),
            col(m.value), col(m.archived), col(m.at), col(m.resolution),
        ).where(col(m.trial) == trial)
    )  # fmt: skip
    held = {_Place(*row[:4]): _Held(*row[4:]) for row in rows}
    put = dict(held)
    for number in numbers:
        if math.isfinite(number.value):
            place = _Place(number.group, number.name, number.step, number.attempt)
            before = put.get(place)
            now = _Held(
                number.value, number.archived, number.at, before.resolution if before else 0
            )
            if now != before:
                put[place] = now
    changed = {place[:2] for place, row in put.items() if row is not held.get(place)}
    lines: dict[tuple[str, str], list[_Place]] = {}
    for place, row in put.items():
        if place[:2] in changed and not row.archived:
            lines.setdefault(place[:2], []).append(place)
    for line in lines.values():
        line.sort(key=lambda place: place.step)
        steps = np.array([place.step for place in line])
        found = resolutions(steps, np.array([put[place].value for place in line]))
        for place, resolution in zip(line, found.tolist(), strict=True):
            if put[place].resolution != resolution:
                put[place] = put[place]._replace(resolution=resolution)
    new = [
        {"trial": trial, **place._asdict(), **row._asdict()}
        for place, row in put.items()
        if place not in held
    ]
    other = [
        {f"of_{name}": value for name, value in place._asdict().items()} | row._asdict()
        for place, row in put.items()
        if place in held and row is not held[place]
    ]
    if new:
        session.connection().execute(insert(m), new)
    if other:
        places = [getattr(m, name) == bindparam(f"of_{name}") for name in _Place._fields]
        session.connection().execute(
            update(m)
            .where(col(m.trial) == trial, *places)
            .values({name: bindparam(name) for name in _Held._fields}),
            other,
        )


def put_decisions(session: Session, trial: str, source: str, made: Sequence[Decided]) -> None:
    """Replace the decisions of one source."""
    of_source = col(tables.Decision.source) == source
    session.connection().execute(
        delete(tables.Decision).where(col(tables.Decision.trial) == trial, of_source)
    )
    rows = [
        {"trial": trial, "source": source, "number": number, **asdict(each)}
        for number, each in enumerate(made)
    ]
    if rows:
        session.connection().execute(insert(tables.Decision), rows)
