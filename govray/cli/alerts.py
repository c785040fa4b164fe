"""``govray alerts``: the process that tells webhooks what happened, and verifies models again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from govray.cli import process, trust
from govray.cli.option_group import given_place
from govray.cli.output import RevocationLists, TrustRoot, line, report
from govray.cli.run_records import run_records
from govray.cli.store import DEFAULT_STORE, Store, opened, opened_session
from govray.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from govray.platform.alerts.rounds import Verify

app = typer.Typer(help="Tell webhooks what happened, and verify registered models again.")


@app.command()
def run(
    source: Annotated[
        str,
        typer.Option("--source", metavar="URL", help="The name of this service in events."),
    ] = "urn:govray",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="HOST",
            help="Send to this host wherever it is, localhost too. Repeatable.",
        ),
    ] = None,
    ahead: Annotated[
        int,
        typer.Option(
            "--expiring-days", min=1, max=365, help="Tell this many days before a credential ends."
        ),
    ] = 30,
    every: Annotated[
        float | None,
        typer.Option(
            "--verify-every",
            metavar="HOURS",
            min=0.01,
            help="Verify what is in staging and production again, this often.",
        ),
    ] = None,
    trust_root: TrustRoot = None,
    revocations: RevocationLists = None,
    once: Annotated[
        bool, typer.Option("--once", help="Do what is due, wait for it, and end.")
    ] = False,
    store: Store = DEFAULT_STORE,
) -> None:
    """Notice what happened in the store, and send it, until SIGTERM or SIGINT."""
    from threading import Event

    from govray.governance.signers.kept_memory import keep_memory
    from govray.platform.alerts.delivery import Deliverer
    from govray.platform.alerts.rounds import Rounds
    from govray.platform.store.database import open_store
    from govray.platform.store.store_secret import indexing_key

    if every is None and (trust_root is not None or revocations):
        raise UsageError(
            "--trust-root and --revocations are for --verify-every", do="Give it, or leave both"
        )
    keep_memory()
    with opened_session(store) as session:
        key = indexing_key(session, store)
    holder = process.own_name()
    with opened(open_store(store)) as engine:
        rounds = Rounds(
            engine=engine,
            deliverer=Deliverer(
                engine,
                key,
                holder=holder,
                source=source,
                clock=_now,
                allowed=[each.lower() for each in allow_host or ()],
            ),
            holder=holder,
            clock=_now,
            ahead=timedelta(days=ahead),
            verify=None if every is None else _verifier(trust_root, revocations),
            every=timedelta(hours=every or 24),
        )
        if once:
            number = rounds.once()
            rounds.deliverer.close()
            report({"events": number})
            line(f"{number} new events")
            return
        line("govray alerts runs  (stop: Ctrl-C)")
        stop = Event()
        process.until_signal(stop)
        rounds.run(stop)


def _verifier(root: Path | None, revocations: list[Path] | None) -> Verify:
    """Verifies a model against the trust root and lists as they are at that time."""
    from govray.governance.verify.verifier import verify

    trust.anchor(root, revocations)  # refused now, not when the first model is verified

    def verified(folder: str) -> str:
        model = given_place(folder)
        anchor = trust.anchor(root, revocations).as_feed()  # for models of many suppliers
        return verify(model, trust_root=anchor, records=run_records(model)).digest

    return verified


def _now() -> datetime:
    return datetime.now(UTC)
