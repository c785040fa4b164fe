"""``govray experiments``: what was submitted or started by hand, through a service."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from govray.cli.listing_verbs import add_listings
from govray.cli.output import field, line, report
from govray.cli.remote_runs import tell_marked, tell_restored
from govray.cli.server_option import service
from govray.cli.told import Id, acts

if TYPE_CHECKING:
    from govray.platform.wire.answers import Experiment

app = typer.Typer(help="List and show experiments; stop, resume, archive, tag or delete one.")

add_listings(app, "experiments")


@app.command("show")
def show(id: Id) -> None:
    """Show one: its state and why, its place in the queue, its runs, its file."""
    row = service().experiments.get(id)
    tell(row)
    for each in (row.file or "").splitlines():
        line(each)


@app.command("tag")
def tag(
    id: Id,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[WORD...]", help="All tags that it is to have.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take all tags off.")] = False,
) -> None:
    """Tag an experiment, in place of the tags that it has; without words show them."""
    experiments = service().experiments
    if words or clear:
        tags = experiments.put_tags(id, tags=[] if clear else words)["tags"]
    else:
        tags = experiments.get(id).tags
    report({"experiment": id, "tags": tags})
    line(f"{id}  {', '.join(tags) or 'has no tags'}")


@app.command("delete")
def delete(id: Id) -> None:
    """Mark all runs of an experiment to be deleted, or none if one may not go."""
    tell_marked(service().experiments.delete(id).items)
    line(f"Take it back  govray experiments restore {quote(id)}")


@app.command("restore")
def restore(id: Id) -> None:
    """Take the marks of an experiment's runs back, before they are removed."""
    tell_restored(service().experiments.restore(id).items)


def tell(row: Experiment) -> None:
    report(row.model_dump(by_alias=True))
    line(f"{row.id}  {row.state}")
    field("name", f"{row.name}, {row.kind}")
    field("by", f"{row.user}, project {row.project}")
    if row.pool is not None:
        field("pool", f"{row.pool}, {row.slots} slots, priority {row.priority}")
    if row.position is not None:
        field("place", f"{row.position} of its pool's queue, by priority and time")
    signed = row.attested and ": ".join(filter(None, (row.attested, row.not_attested)))
    for name, value in (
        *(("job", row.job), ("why", row.why)),
        ("attestation", signed),
    ):
        if value:
            field(name, value)
    for run in row.runs:
        field("run", run)
    if row.tags:
        field("tags", ", ".join(row.tags))


acts(app, "experiments", tell)
