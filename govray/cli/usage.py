"""``govray usage``: what was used, by project, user or workspace."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from govray.cli.option_group import given_time
from govray.cli.output import line, print_table, report, table
from govray.cli.store import DEFAULT_STORE, Store, opened_session


class UsageBy(StrEnum):
    project = "project"
    user = "user"
    workspace = "workspace"


def usage(
    by: Annotated[
        UsageBy, typer.Option("--by", help="Add up by project, user or workspace.")
    ] = UsageBy.project,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Count only trials that started, and tasks submitted, at this time or later.",
        ),
    ] = None,
    store: Store = DEFAULT_STORE,
) -> None:
    """Show accelerator-hours and attested artifacts, by project, user or workspace."""
    from govray.governance.formats.document import format_time
    from govray.platform.store.usage import usage as used

    start = format_time(given_time(since, "--since")) if since else None
    now = format_time(datetime.now(UTC))
    with opened_session(store) as session:
        found = used(session, at=now, by=by.value, since=start)
    report(
        [
            {
                by.value: each.name,
                "submissions": each.submissions,
                "trials": each.trials,
                "workerHours": each.worker_hours,
                "acceleratorHours": each.accelerator_hours,
                "attestedArtifacts": each.attested,
            }
            for each in found
        ]
    )
    if not found:
        line("Nothing was used yet. Runs count once they are indexed: govray store index DIR")
        return
    numbers = ("submissions", "trials", "worker-hours", "accelerator-hours", "attested")
    grid = table(by.value, *numbers, right=numbers)
    for each in found:
        grid.row(
            each.name,
            str(each.submissions),
            str(each.trials),
            f"{each.worker_hours:.2f}",
            f"{each.accelerator_hours:.2f}",
            str(each.attested),
        )
    print_table(grid)
