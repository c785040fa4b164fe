"""Legal holds on a run: ``holds.json`` in its folder, case to who placed it and when.

While one is there, none of the run's commits is deleted, by no rule and by nobody. Nothing of the
model that lies in the folder is removed either. Several cases hold one run, and each is released by
itself. A process that cannot read the file deletes nothing.

The lock is that of the pins (`govray.train.checkpoint.pins`): no hold comes between a look and a
deletion. Code that trains writes to the folder, so a hold binds govray, and not who has the disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from govray.errors import Malformed, Refused, UsageError
from govray.governance.formats import canonical_json
from govray.storage.atomic_file import write_whole
from govray.storage.place import Place
from govray.train.checkpoint.pins import locked, read_file

HOLDS = "holds.json"
LONGEST_CASE = 200
"""Characters."""
MOST = 1000
"""Cases of one run."""

Holds = dict[str, dict[str, str]]
"""Case → ``{"at", "by"}``."""


def read_holds(folder: Place) -> Holds:
    """The cases that hold what lies in a folder; empty where there is no ``holds.json``."""
    path = folder / HOLDS
    try:
        data = read_file(path) if isinstance(path, Path) else path.read_bytes()
    except FileNotFoundError:
        return {}
    value: Any = canonical_json.parse_canonical(data, where=str(path))
    if not isinstance(value, dict) or not all(
        isinstance(each, dict) and set(each) == {"at", "by"} for each in value.values()
    ):
        raise Malformed("expected cases with who placed each and when", where=str(path))
    return value


def hold(folder: Path, case: str, *, by: str, at: str) -> Holds:
    if not 0 < len(case) <= LONGEST_CASE or not case.isprintable():
        raise UsageError(f"a case is a line of 1 to {LONGEST_CASE} characters", where="--for")
    with locked(folder):
        found = read_holds(folder)
        if case not in found:
            if len(found) >= MOST:
                raise UsageError(f"{MOST} cases hold this run already", where=str(folder))
            found[case] = {"at": at, "by": by}
            write_whole(folder / HOLDS, canonical_json.encode(found))
    return found


def release(folder: Path, case: str) -> Holds:
    """Release the hold of one case. Returns what holds still."""
    with locked(folder):
        found = read_holds(folder)
        if found.pop(case, None) is None:
            raise UsageError(
                "no such case holds this run",
                where=case[:LONGEST_CASE],
                do="`govray runs show` lists what does",
            )
        write_whole(folder / HOLDS, canonical_json.encode(found))
    return found


def check_not_held(folder: Place, what: str) -> None:
    """Return if nothing holds what lies in a folder."""
    if held := read_holds(folder):
        raise Refused(
            f"{what} is held for {', '.join(sorted(held)[:3])}",
            where=str(folder),
            do="Release the hold first: govray runs release RUN --for CASE",
        )
