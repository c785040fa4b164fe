"""Versions of a model: ``MAJOR.MINOR.PATCH``, in the order of SemVer 2.0.0.

Pre-releases (``1.0.0-rc.1``) and build metadata (``1.0.0+7``) are refused. How far a version is
from being used is its stage, which changes while the version stays; a second language for it
could only disagree. Build metadata has no order, so two versions could tie. What is left is
ordered by three numbers, in a database as in Python.

Source: https://semver.org/spec/v2.0.0.html, items 2, 9, 10 and 11.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from govray.errors import UsageError

MOST = 2**31 - 1
"""The largest of each number: what an integer column holds on every database."""

_PLAIN = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
_LONGEST = 3 * len(str(MOST)) + 2


class SemanticVersion(NamedTuple):
    """Three numbers; tuples compare as SemVer does."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def parse_version(text: str) -> SemanticVersion:
    """The version that ``text`` names. Raises `UsageError`: it is no ``MAJOR.MINOR.PATCH`` of
    numbers up to `MOST` without leading zeros."""
    match = _PLAIN.fullmatch(text) if len(text) <= _LONGEST else None
    numbers = [int(each) for each in match.groups()] if match else []
    if not numbers or max(numbers) > MOST:
        said = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        raise UsageError(
            f"{said!r} is no version",
            where="version",
            do="Write MAJOR.MINOR.PATCH, such as 1.4.0. Pre-releases and build metadata have no "
            "place here: the stage says how far a version is.",
        )
    return SemanticVersion(*numbers)
