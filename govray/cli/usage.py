"""``govray usage``: what was used, as far as you may see it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from govray.cli.option_group import stated_time
from govray.cli.output import in_bytes, line, print_table, report, table
from govray.cli.server_option import service


class UsageBy(StrEnum):
    project = "project"
    user = "user"
    pool = "pool"
    workspace = "workspace"


def usage(
    by: Annotated[
        UsageBy, typer.Option("--by", help="Add up by project, user, pool or workspace.")
    ] = UsageBy.project,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Count only runs that started, and tasks submitted, at this time or later.",
        ),
    ] = None,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print a file for spreadsheets instead.")
    ] = False,
) -> None:
    """Show accelerator-hours, bytes and attested artifacts, by project, user, pool or workspace."""
    asked, known = {"by": by.value, "since": stated_time(since, "--since")}, service().service
    if csv:
        for row in known.usage_csv(**asked).splitlines():
            line(row)
        return
    found = list(known.usage(**asked))
    report(found)
    if not found:
        line("Nothing was used yet. Runs count once they are indexed: govray store index DIR")
        return
    numbers = ("submitted", "runs", "worker-hours", "accelerator-hours", "stored", "attested")
    grid = table(by.value, *numbers, right=numbers)
    for each in found:
        hours = (f"{each[name]:.2f}" for name in ("workerHours", "acceleratorHours"))
        grid.row(
            *(each["name"], str(each["submitted"]), str(each["runs"])),
            *(*hours, in_bytes(int(each["bytes"])), str(each["attested"])),
        )
    print_table(grid)
