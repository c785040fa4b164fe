"""Options that verbs share, as one object: a dataclass whose fields are the options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any


def option_groups(verb: Callable[..., None]) -> Callable[..., None]:
    """Let typer see the fields of each dataclass that ``verb`` takes as options of the verb."""
    taken = signature(verb, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: each.annotation for name, each in taken.items() if is_dataclass(each.annotation)
    }

    @wraps(verb)
    def spread(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in fields(group)})
        verb(**given)

    shown: list[Parameter] = []
    for name, each in taken.items():
        inner = signature(groups[name], eval_str=True).parameters if name in groups else {}
        shown += inner.values() or [each]
    options = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in shown]
    spread.__signature__ = Signature(options)  # type: ignore[attr-defined]
    return spread
