"""A file of settings in YAML, read strictly as a dataclass: `read_stated`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

import pydantic

from govray.governance.formats.strict_yaml import read_yaml_file

Stated = TypeVar("Stated")


def read_stated(path: Path, adapter: pydantic.TypeAdapter[Stated], *, do: str) -> Stated:
    source = read_yaml_file(path, do=do)
    try:
        # As JSON: strictly read, Python's own dict would be no dataclass.
        return adapter.validate_json(json.dumps(source.value), strict=True, extra="forbid")
    except pydantic.ValidationError as error:
        raise source.wrong(error, do=do) from None
