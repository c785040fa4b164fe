"""A file of settings in YAML, read strictly as a dataclass: `read_stated`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

import pydantic

from govray.errors import UsageError
from govray.governance.formats.strict_yaml import read_yaml_file

Stated = TypeVar("Stated")


def read_stated(path: Path, adapter: pydantic.TypeAdapter[Stated], *, do: str) -> Stated:
    value = read_yaml_file(path, do=do).value
    try:
        # As JSON: strictly read, Python's own dict would be no dataclass.
        return adapter.validate_json(json.dumps(value), strict=True, extra="forbid")
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(step) for step in first["loc"])
        what = first["msg"][:1].lower() + first["msg"][1:]
        raise UsageError(
            f"field '{field}': {what}" if field else what, where=str(path), do=do
        ) from None
