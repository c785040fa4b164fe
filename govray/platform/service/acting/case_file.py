"""The file that turns rights holders' cases on, as docs/cases.md has it: `read_cases`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pydantic

from govray.errors import UsageError
from govray.governance.formats.keys import is_outside
from govray.platform.service.http.settings import CaseSettings
from govray.platform.service.http.stated_file import read_stated
from govray.storage.place import Place, place

_IN_A_VARIABLE = "env:"


@dataclass(frozen=True, kw_only=True)
class CaseFile:
    """What the file may say. See `CaseSettings`."""

    key: str
    without_token: bool = False
    per_day: int = 5
    corpora: str | None = None


_FILE = pydantic.TypeAdapter(CaseFile)


def read_cases(path: Path) -> CaseSettings:
    """How cases are answered, as a YAML file states it. A relative path of a key, or of the
    corpora, begins at that file."""
    do = "See docs/cases.md, Turn it on"
    stated = read_stated(path, _FILE, do=do)
    key = stated.key
    if not is_outside(key) and not key.startswith(_IN_A_VARIABLE):
        key = str(path.parent / key)
    return CaseSettings(
        key=key,
        without_token=stated.without_token,
        per_day=stated.per_day,
        corpora=None if stated.corpora is None else _corpora(stated.corpora, path, do),
    )


def _corpora(text: str, path: Path, do: str) -> Place:
    try:
        found = place(text)
    except ValueError as error:
        raise UsageError(f"field 'corpora': {error}", where=str(path), do=do) from None
    return path.parent / found if isinstance(found, Path) else found
