"""``govray experiments``: what was submitted or started by hand, through a service."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from govray.cli.output import field, line, print_table, report, table
from govray.cli.remote_runs import tell_marked, tell_restored
from govray.cli.server_option import service
from govray.cli.told import Before, Id, Limit, OfProject, OfUser, Since, Sort, acts, between

if TYPE_CHECKING:
    from govray.platform.wire.answers import Experiment

app = typer.Typer(help="List and show experiments; stop, resume, archive, tag or delete one.")

_STATES = "QUEUED, RUNNING, PREEMPTING, STOPPING, KILLING, COMPLETED, STOPPED, KILLED or ERROR."


@app.command("ls")
def ls(
    state: Annotated[str | None, typer.Option("--state", metavar="STATE", help=_STATES)] = None,
    project: OfProject = None,
    user: OfUser = None,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="WORD", help="List those with this tag.")
    ] = None,
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="NAME", help="List those in this pool.")
    ] = None,
    archived: Annotated[
        bool, typer.Option("--archived", help="List those that were archived.")
    ] = False,
    since: Since = None,
    before: Before = None,
    sort: Sort = None,
    limit: Limit = 50,
) -> None:
    """List experiments, the latest first."""
    from itertools import islice

    found = service().experiments.list(
        state=state,
        project=project,
        user=user,
        tag=tag,
        pool=pool,
        archived=archived or None,
        sort=sort,
        **between(since, before),
    )
    items = list(islice(found, limit))
    report([each.model_dump(by_alias=True) for each in items])
    if not items:
        line("No experiment is like that. Submit one: govray --server URL train FILE")
        return
    grid = table(
        *("id", "name", "project", "user", "state", "place", "pool", "priority", "slots"),
        *("tries", "why"),
        right=("place", "priority", "slots", "tries"),
    )
    for each in items:
        grid.row(
            *(each.id, each.name, each.project, each.user, each.state, str(each.position or "")),
            *("" if n is None else str(n) for n in (each.pool, each.priority, each.slots)),
            *("" if each.attempt is None else str(each.attempt), each.why or ""),
        )
    print_table(grid)


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
