"""``govray webhook``: who is told of events, and what became of each telling."""

from __future__ import annotations

from typing import Annotated

import typer

from govray.cli.changer import changer
from govray.cli.output import field, line, note, print_table, report, table
from govray.cli.store import DEFAULT_STORE, Store, opened_session

app = typer.Typer(help="Make webhooks, and see what was sent to them.")

Webhook = Annotated[str, typer.Argument(metavar="ID", help="The webhook's id, from ls.")]


@app.command()
def add(
    url: Annotated[str, typer.Argument(metavar="URL", help="https://…, where events are sent.")],
    event: Annotated[
        list[str] | None,
        typer.Option("--event", metavar="KIND", help="Such as run.error. Repeatable; none: all."),
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="NAME", help="Only of this project.")
    ] = None,
    store: Store = DEFAULT_STORE,
) -> None:
    """Make a webhook. Its secret is printed once."""
    from govray.platform.store import webhooks
    from govray.platform.store.secret_fingerprint import indexing_key

    with opened_session(store) as session:
        row, secret = webhooks.add(
            session,
            url=url,
            kinds=event or (),
            project=project,
            key=indexing_key(session, store),
            by=changer(),
        )
        said = {"id": row.id, "url": row.url, "events": row.kinds, "secret": secret}
        session.commit()
    report(said)
    line(secret)  # alone on standard output, for $(…)
    note(f"{said['id']} signs with this secret, which is not shown again.")
    note("Next  govray alerts run, which sends; and govray webhook test, which tries it")


@app.command("ls")
def list_all(store: Store = DEFAULT_STORE) -> None:
    """List the webhooks."""
    from sqlmodel import col, select

    from govray.platform.store import tables

    with opened_session(store) as session:
        rows = session.exec(select(tables.Webhook).order_by(col(tables.Webhook.id))).all()
    report(
        [
            {
                "id": r.id,
                "url": r.url,
                "events": r.kinds,
                "project": r.project,
                "created": r.created,
            }
            for r in rows
        ]
    )
    if not rows:
        line("No webhooks yet. Make one: govray webhook add URL")
        return
    grid = table("webhook", "url", "project", "events")
    for row in rows:
        grid.row(row.id, row.url, row.project or "all", " ".join(row.kinds))
    print_table(grid)


@app.command("rm")
def remove(webhook: Webhook, store: Store = DEFAULT_STORE) -> None:
    """Remove a webhook, and what was still to be sent to it."""
    from govray.platform.store import webhooks

    with opened_session(store) as session:
        webhooks.remove(session, webhooks.find(session, webhook), by=changer())
        session.commit()
    report({"id": webhook, "removed": True})
    line(f"Removed {webhook}")


@app.command("test")
def try_it(webhook: Webhook, store: Store = DEFAULT_STORE) -> None:
    """Put a test event into line for a webhook; govray alerts run sends it."""
    import secrets

    from govray.platform.store import webhooks
    from govray.platform.store.alert_events import probe

    by = changer()
    with opened_session(store) as session:
        row = webhooks.find(session, webhook)
        event = probe(row.id, at=by.at, number=secrets.token_hex(8))
        webhooks.send_test(session, row, event, by=by)
        said = {"id": webhook, "event": event.id}
        session.commit()
    report(said)
    line(f"Event {said['event']} waits for govray alerts run")
    line(f"Next  govray webhook deliveries {webhook}")


@app.command()
def deliveries(
    webhook: Webhook,
    dead: Annotated[bool, typer.Option("--dead", help="Only those that were given up.")] = False,
    most: Annotated[int, typer.Option("--lines", "-n", min=1, max=1000, help="The latest.")] = 20,
    store: Store = DEFAULT_STORE,
) -> None:
    """List what was sent to a webhook, the latest first, and what became of it."""
    from govray.platform.store import webhooks

    with opened_session(store) as session:
        webhooks.find(session, webhook)
        rows = webhooks.deliveries(session, webhook, dead=dead, most=most)
    report(
        [
            {
                "event": event.id,
                "kind": event.kind,
                "subject": event.subject,
                "state": each.state.value,
                "tries": each.tries,
                "due": each.due,
                "status": each.status,
                "why": each.why,
            }
            for each, event in rows
        ]
    )
    for each, event in rows:
        line(f"{event.at}  {each.state.value}  {event.kind}  {event.subject}")
        field("event", event.id)
        field("tries", each.tries)
        if each.status is not None:
            field("answer", each.status)
        if each.why:
            field("why", each.why)


@app.command()
def resend(
    webhook: Webhook,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's id.")],
    store: Store = DEFAULT_STORE,
) -> None:
    """Let an event be sent again, such as one that was given up."""
    from govray.platform.store import webhooks

    with opened_session(store) as session:
        webhooks.resend(session, webhooks.find(session, webhook), event, by=changer())
        session.commit()
    report({"id": webhook, "event": event})
    line(f"Event {event} waits for govray alerts run")
