"""A class that an experiment file names by its import path, and the arguments that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, isclass, signature
from typing import Any, TypeVar

from govray.errors import UsageError, nearest, suggestion
from govray.train.experiment.import_path import import_named, split_path

Base = TypeVar("Base")


def imported_class(name: str, base: type[Base], *, where: str) -> type[Base]:
    """The class of an import path. ``name``: ``module.Class`` or ``module:Class``."""
    module_name, class_name = split_path(name)
    try:
        module = import_named(module_name)
    except ImportError as error:
        raise UsageError(
            f"{name} can't be imported: {error}",
            where=where,
            do="Name an importable module.Class; the working directory counts",
        ) from error
    found = getattr(module, class_name, None)
    if not (isclass(found) and issubclass(found, base)) or found is base:
        known = {
            each.lower(): each
            for each, kind in vars(module).items()
            if isclass(kind) and issubclass(kind, base) and kind is not base
        }
        near = known.get(nearest(class_name.lower(), known) or "")
        what = "does not exist" if found is None else f"is no {base.__name__} to use"
        raise UsageError(
            f"{name} {what}" + (f" (did you mean {near!r}?)" if near else ""),
            where=where,
            do=f"Name a subclass of {base.__module__}.{base.__name__}",
        )
    return found


def check_arguments(kind: type, given: Mapping[str, Any], *, where: str) -> None:
    """Compare arguments by name with those that a class takes behind its first."""
    first, *parameters = signature(kind).parameters.values()
    takes = {each.name for each in parameters if each.kind is not Parameter.VAR_KEYWORD}
    open_ended = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
    for name in given:
        if name == first.name:
            raise UsageError(f"{name} is what govray gives itself", where=where, do="Leave it out")
        if name not in takes and not open_ended:
            raise UsageError(
                f"{kind.__name__} takes no argument {name!r}{suggestion(name, takes)}",
                where=where,
                do=f"It takes {', '.join(each.name for each in parameters)}",
            )
    optional = (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    for each in parameters:
        needed = each.default is Parameter.empty and each.kind not in optional
        if needed and each.name not in given:
            raise UsageError(
                f"{kind.__name__} needs the argument {each.name!r}", where=where, do="Give it"
            )
