"""Options and arguments that verbs share: as one object, and what their values may be."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from govray.errors import Malformed, UsageError
from govray.storage.place import Place, place


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


_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def given_time(text: str, option: str) -> datetime:
    """The instant that ``option`` states by ``text``, aware and in UTC."""
    from govray.governance.formats.document import parse_time

    try:
        return parse_time(f"{text}T00:00:00Z" if _DATE.fullmatch(text) else text)
    except Malformed:
        raise UsageError(
            f"{text!r} is not a time",
            where=option,
            do="Write YYYY-MM-DD or YYYY-MM-DDTHH:MM:SSZ, in UTC",
        ) from None


def stated_time(text: str | None, option: str) -> str | None:
    """What `given_time` reads, as documents have times; None: the option is not given."""
    from govray.governance.formats.document import format_time

    return None if text is None else format_time(given_time(text, option))


# The values of a credential that options take.
#
# They are those of `govray.governance`, written out so that ``govray --help`` need not load it; a
# test compares them.


LicenseCategory = Literal[
    "public_domain", "permissive", "copyleft_limited", "copyleft", "commercial", "unknown"
]
Sensitivity = Literal["public", "internal", "confidential", "restricted"]
Use = Literal["commercial", "non_commercial", "academic_only", "unspecified"]


def given_place(text: str) -> Place:
    try:
        return place(text)
    except ValueError as error:
        raise UsageError(str(error), where=text.partition(":")[0] + ":…") from None


def run_of(folder: Path) -> Path:
    """The run that a user names by its folder, by its model folder, or by its id.
    An id is looked for in ``runs``, as ``govray runs ls`` does."""
    if not folder.exists() and (Path("runs") / folder).is_dir():
        return Path("runs") / folder
    if not (folder / "record").is_dir() and (folder.resolve().parent / "record").is_dir():
        return folder.resolve().parent
    return folder


def _given_run(text: str) -> Place:
    found = given_place(text)
    return run_of(found) if isinstance(found, Path) else found


if TYPE_CHECKING:
    Given: TypeAlias = Place
else:
    Given = Path  # typer takes no union; the parser decides

_RUN = typer.Argument(
    metavar="RUN",
    parser=_given_run,
    help="A run's folder or URL, below storage_path; or its id, in runs.",
)
Run = Annotated[Given, _RUN]
OptionalRun = Annotated[Given | None, _RUN]
Storage = Annotated[
    Given,
    typer.Argument(
        metavar="STORAGE", parser=given_place, help="The experiments' storage_path, or its URL."
    ),
]
