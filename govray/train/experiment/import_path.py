"""Names of importable things in an experiment file."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

_NUMBER = re.compile(r"([+-]?\d+)(\.\d*)?[eE]([+-]?)(\d+)")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*[.:][A-Za-z_]\w*")


def check_import_path(name: str, own: str) -> str:
    """Return ``name`` if it is ``own`` or may be imported.
    ``name``: ``module.Class`` or ``module:Class``."""
    if name != own and not _PATH.fullmatch(name):
        raise ValueError(f"give {own}, or an import path such as package.module.Class")
    return name


def split_path(name: str) -> tuple[str, str]:
    """The module and the class of an import path."""
    module, _, last = name.replace(":", ".").rpartition(".")
    return module, last


def import_named(module: str) -> ModuleType:
    """Import a module that an experiment file names. The working directory counts, behind
    everything else that Python searches. Workers have it too: Ray gives it to them."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    return import_module(module)


def source_files(module: str) -> tuple[str, str]:
    """Where a module's source may lie, below a folder that Python searches."""
    path = module.replace(".", "/")
    return f"{path}.py", f"{path}/__init__.py"


def check_numbers(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments if none is a number that YAML took for text."""
    for name, value in arguments.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, str) and (number := _NUMBER.fullmatch(each)):
                whole, part, sign, exponent = number.groups()
                number_form = f"{whole}{part or '.0'}e{sign or '+'}{exponent}"
                raise ValueError(f"{name}: YAML reads {each} as text, write {number_form}")
    return arguments
