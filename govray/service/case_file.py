"""The file that turns rights holders' cases on, as docs/cases.md has it: `read_cases`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pydantic

from govray.errors import UsageError
from govray.files.place import Place, place
from govray.governance.formats.keys import is_outside
from govray.governance.formats.strict_yaml import MAX_BYTES, read_yaml
from govray.service.settings import CaseSettings

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
    """How cases are answered, as a YAML file states it.

    A relative path of a key, or of the corpora, begins at that file.

    Raises:
        UsageError: There is no such file; or a field is missing, unknown or of another type.
        Malformed: It is not YAML.
    """
    do = "See docs/cases.md, Turn it on"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"the file cannot be read ({error.strerror})", where=str(path), do=do
        ) from None
    value = read_yaml(data, name=str(path)).value
    try:
        stated = _FILE.validate_json(json.dumps(value), strict=True, extra="forbid")
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(step) for step in first["loc"])
        what = first["msg"][:1].lower() + first["msg"][1:]
        raise UsageError(
            f"field '{field}': {what}" if field else what, where=str(path), do=do
        ) from None
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
