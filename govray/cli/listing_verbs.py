"""Verbs that list what a service has, as the rows of `govray.platform.wire.operations` say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from govray.cli.option_group import stated_time
from govray.cli.server_option import service
from govray.cli.told import RunId, tell_rows
from govray.platform.wire.operations import Call, Filter, Listed, Namespace

Limit = Annotated[int, typer.Option("--limit", min=1, help="Show at most this many, the latest.")]


LISTINGS = {
    each.listed.verb: each
    for namespace in Namespace.__subclasses__()
    for each in vars(namespace).values()
    if isinstance(each, Call) and each.listed is not None
}


def add_listings(app: typer.Typer, family: str) -> None:
    """Give ``app`` the verbs of ``family`` that list."""
    for name in LISTINGS:
        if name.startswith(f"{family} "):
            app.command(name.partition(" ")[2])(listing_verb(name))


def listing_verb(name: str) -> Callable[..., None]:
    """The verb of that name, with its family's, for typer."""
    operation = LISTINGS[name]
    listed = operation.listed
    assert listed is not None

    def verb(**given: Any) -> None:
        fields = [given[name] for name in operation.fields]
        asked = {each.field or each.name: _sent(each, given[each.name]) for each in listed.options}
        found = service().call(operation, *fields, **asked)
        items = found["items"] if isinstance(found, dict) else found
        tell_rows(
            items,
            listed.columns,
            listed.none,
            limit=given.get("limit"),
            right=listed.right,
            blank=listed.blank,
            cells=listed.cells,
        )

    verb.__doc__ = listed.help
    verb.__signature__ = Signature(list(_parameters(operation, listed)))  # type: ignore[attr-defined]
    return verb


def _parameters(operation: Call[Any], listed: Listed) -> Iterator[Parameter]:
    """What typer makes of a verb: arguments for the path's fields, and its options."""
    for name in operation.fields:
        yield Parameter(name, Parameter.KEYWORD_ONLY, annotation=RunId)
    for each in listed.options:
        flag, default = f"--{each.name}", None if each.word else False
        kind: Any = Annotated[bool, typer.Option(flag, help=each.help)]
        if each.word:
            kind = Annotated[str | None, typer.Option(flag, metavar=each.word, help=each.help)]
        yield Parameter(each.name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
    if listed.limit is not None:
        yield Parameter("limit", Parameter.KEYWORD_ONLY, annotation=Limit, default=listed.limit)


def _sent(option: Filter, given: Any) -> Any:
    """What the service is asked for where a verb was given this; None: nothing."""
    if not option.word:
        return option.sends if given else None
    return stated_time(given, f"--{option.name}") if option.time else given
