"""``govray webhook``: who is told of events, and what became of each telling."""

from __future__ import annotations

from typing import Annotated

import typer

from govray.cli.listing_verbs import add_listings
from govray.cli.output import field, line, note, report
from govray.cli.server_option import service

app = typer.Typer(help="Make webhooks, and see what was sent to them.")

Webhook = Annotated[str, typer.Argument(metavar="ID", help="The webhook's id, from ls.")]


@app.command()
def add(
    url: Annotated[str, typer.Argument(metavar="URL", help="https://…, where events are sent.")],
    event: Annotated[
        list[str] | None,
        typer.Option(
            "--event",
            metavar="KIND",
            help="An event to send, such as run.error. Repeatable. Default: all.",
        ),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option("--project", metavar="NAME", help="Send events of this project alone."),
    ] = None,
) -> None:
    """Make a webhook. Its secret is printed once."""
    made = service().webhooks.add(url=url, events=event or [], project=project)
    report(made)
    line(made["secret"])  # alone on standard output, for $(…)
    note(f"{made['id']} signs with this secret, which is not shown again.")
    note("Next  govray alerts run, which sends; and govray webhook test, which tries it")


add_listings(app, "webhook")


@app.command("rm")
def remove(webhook: Webhook) -> None:
    """Remove a webhook, and what was still to be sent to it."""
    report(service().webhooks.remove(webhook))
    line(f"Removed {webhook}")


@app.command("test")
def try_it(webhook: Webhook) -> None:
    """Put a test event into line for a webhook; govray alerts run sends it."""
    sent = service().webhooks.test(webhook)
    report(sent)
    line(f"Event {sent['alert']} waits for govray alerts run")
    line(f"Next  govray webhook deliveries {webhook}")


@app.command()
def deliveries(
    webhook: Webhook,
    dead: Annotated[
        bool, typer.Option("--dead", help="Show only those that were given up.")
    ] = False,
    most: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=1000, help="Show this many, the latest.")
    ] = 20,
) -> None:
    """List what was sent to a webhook, the latest first, and what became of it."""
    from itertools import islice

    found = service().webhooks.deliveries(webhook, state="DEAD" if dead else None)
    rows = list(islice(found, most))
    report(rows)
    for row in rows:
        line(f"{row['due']}  {row['state']}  {row['alert']}")
        field("tries", row["tries"])
        if row.get("status") is not None:
            field("answer", row["status"])
        if row.get("why"):
            field("why", row["why"])


@app.command()
def resend(
    webhook: Webhook,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's id.")],
) -> None:
    """Let an event be sent again, such as one that was given up."""
    report(service().webhooks.resend(webhook, event))
    line(f"Event {event} waits for govray alerts run")
