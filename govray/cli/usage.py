"""``govray usage``: what was used, as far as you may see it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from govray.cli.option_group import stated_time
from govray.cli.output import in_bytes, line
from govray.cli.server_option import service
from govray.cli.told import tell_rows


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
    tell_rows(
        known.usage(**asked),
        f"{by.value}: name, submitted, runs, worker-hours: {{workerHours:.2f}}, "
        "accelerator-hours: {acceleratorHours:.2f}, stored, attested",
        "Nothing was used yet. Runs count once they are indexed: govray store index DIR",
        right=("submitted", "runs", "worker-hours", "accelerator-hours", "stored", "attested"),
        cells={"stored": lambda row: in_bytes(int(row["bytes"]))},
    )
