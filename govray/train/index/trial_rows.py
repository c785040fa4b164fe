"""Metrics and decisions of one trial, into their tables."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import delete, insert
from sqlmodel import Session, col, select

from govray.files.place import Place
from govray.files.regular_file import open_regular
from govray.governance.formats import canonical_json
from govray.governance.record.entropy_profile import EntropyProfile
from govray.store import tables
from govray.train.index.event_rows import Decided, MetricValue
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


def put_numbers(session: Session, trial: str, numbers: Sequence[MetricValue]) -> None:
    """Add what is new and archive what was superseded. No row is deleted.

    Infinities and NaN are left out: not every JSON reader accepts them.
    """
    held = {
        (each.group, each.name, each.step, each.attempt): each
        for each in session.exec(select(tables.Metric).where(tables.Metric.trial == trial))
    }
    new: dict[Any, dict[str, Any]] = {}
    for number in numbers:
        if not math.isfinite(number.value):
            continue
        place = (number.group, number.name, number.step, number.attempt)
        row = held.get(place)
        if row is None:
            new[place] = {"trial": trial, **asdict(number)}
        elif (row.archived, row.value, row.at) != (number.archived, number.value, number.at):
            row.archived, row.value, row.at = number.archived, number.value, number.at
    if new:
        session.connection().execute(insert(tables.Metric), list(new.values()))


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
