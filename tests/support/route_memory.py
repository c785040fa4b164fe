"""What FastAPI reads of a route, read once for all applications of a process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fastapi import params, routing

READS = "_build_dependant_with_parameterless_dependencies"
MAKES = "create_model_field"


def remember(patch: pytest.MonkeyPatch) -> None:
    """Let FastAPI remember, until ``patch`` is undone."""
    read, make = getattr(routing, READS), getattr(routing, MAKES)
    dependants: dict[Any, tuple[Any, ...]] = {}
    fields: dict[Any, Any] = {}

    def remembered(
        *, path: str, call: Callable[..., Any], dependencies: Sequence[params.Depends]
    ) -> tuple[Any, ...]:
        key = (path, call, *dependencies)
        if key not in dependants:
            dependants[key] = read(path=path, call=call, dependencies=dependencies)
        dependant, body, embedded = dependants[key]
        return copy.copy(dependant), list(body), embedded

    def made(**words: Any) -> Any:
        key = tuple(words.items())
        if key not in fields:
            fields[key] = make(**words)
        return fields[key]

    patch.setattr(routing, READS, remembered)
    patch.setattr(routing, MAKES, made)
