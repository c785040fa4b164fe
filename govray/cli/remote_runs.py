"""``govray --server URL runs``: runs by their ids, as a service has indexed them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from govray.cli.completion import ids
from govray.cli.fetched import Into, tell, with_bar
from govray.cli.listing_verbs import add_listings
from govray.cli.output import field, line, print_table, report, table
from govray.cli.server_option import service
from govray.cli.told import RunId
from govray.errors import Malformed, UsageError

if TYPE_CHECKING:
    from govray.platform.client import Client
    from govray.platform.wire.answers import Deletion
    from govray.platform.wire.operations import Runs

app = typer.Typer(help="List, show and compare runs, delete one, download its evidence.")

Lines = Annotated[
    int, typer.Option("--lines", "-n", min=1, help="Show this many lines of each log.")
]
EveryLog = Annotated[
    bool, typer.Option("--all", help="Show all attempts and drivers, not the last ones alone.")
]

GOING = ("RUNNING", "STOPPING")
LOOK_S = 2.0
MOST_LINES = 2000
"""Of one answer of the service."""


add_listings(app, "runs")


@app.command("show")
def show(run: RunId) -> None:
    """Show the state of a run, its settings, and what was decided during it."""
    client = service()
    found, decided = client.runs.get(run), list(client.runs.decisions(run))
    of = client.experiments.get(found.experiment).model_dump()
    said = {name: of[name] for name in ("project", "description", "notes") if of.get(name)}
    report({**found.model_dump(by_alias=True), **said, "decisions": decided})
    line(f"{found.id}  {found.state}")
    field("step", f"{found.step} of {found.max_steps}")
    for name, value in said.items():
        for text in value.splitlines():
            field(name, text)
    for name in ("experiment", "policy", "loss", "objective", "attempts", "started", "finished"):
        if (value := getattr(found, name)) is not None:
            field(name, value)
    for name, value in (("replay of", found.replay_of), ("why", found.why)):
        if value:
            field(name, value)
    for name, value in found.hyperparameters.items():
        field("set", f"{name}={value}")
    for each in decided:
        line(f"{each['at'] or '-'}  {each['kind']}: {each['reason']}")


@app.command("compare")
def compare(
    names: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="The runs' ids.", autocompletion=ids)
    ],
) -> None:
    """Compare runs: what each came to, and the settings that are not the same in all."""
    runs = service().runs
    found = [runs.get(each).model_dump(by_alias=True) for each in names]
    report(found)
    same = ("state", "step", "maxSteps", "loss", "objective", "attempts", "policy", "started")
    rows = {name: [each[name] for each in found] for name in same}
    for name in dict.fromkeys(name for each in found for name in each["hyperparameters"]):
        values = [each["hyperparameters"].get(name) for each in found]
        if any(each != values[0] for each in values):
            rows[name] = values
    grid = table("", *(each["id"] for each in found))
    for name, values in rows.items():
        grid.row(name, *("-" if each is None else str(each) for each in values))
    print_table(grid)


@app.command("logs")
def logs(
    run: RunId,
    lines: Lines = 20,
    every: EveryLog = False,
    search: Annotated[
        str,
        typer.Option("--search", metavar="TEXT", help="Show lines with this text, in any case."),
    ] = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="DIR", help="Write each whole log to a new folder."),
    ] = None,
) -> None:
    """Show the end of each worker's output, as the service has it.

    With --search all lines that have TEXT, and the whole of each log is searched.
    """
    if into is not None and (follow or search):
        raise UsageError("--into writes whole logs", do="Leave --follow and --search out")
    client = service()
    runs = client.runs
    names = [each["name"] for each in runs.logs(run)["items"]]
    if not every:
        # ``rank-R-A.log``, of attempt A.
        attempts = {name: int(name.split("-")[2][:-4]) for name in names if name[0] == "r"}
        names = [name for name, each in attempts.items() if each == max(attempts.values())]
    if into is not None:
        _write(runs, run, names, into)
        return
    tails: dict[str, list[str]] = {name: [] for name in names}
    at: dict[str, int | None] = dict.fromkeys(names, 0 if search else None)
    if not names:
        line("The service has no log of the run's workers. --all shows those of drivers too.")
    going, named = True, ""
    while going:
        # The state first: what was written before the run ended is then surely read.
        going = follow and _goes_on(client, run)
        for name in names:
            for text in _following(runs, run, name, at, lines=lines, search=search):
                if name != named:
                    line(name)
                    named = name
                line(f"  {text}")
                tails[name].append(text)
        if going:
            time.sleep(LOOK_S)
    report([{"name": name, "tail": tail} for name, tail in tails.items()])


@app.command("download")
def download(run: RunId, into: Into) -> None:
    """Download what was signed of a run to the new folder DIR: attestation, policy, ledger.

    DIR appears only once all is there and each file has its digest.
    """
    runs = service().runs
    done = with_bar(lambda told: runs.download_evidence(run, into=into, told=told))
    tell(f"the evidence of {run}", done, run=run)


def _write(runs: Runs, run: str, names: list[str], into: Path) -> None:
    """Write whole logs to a new folder."""
    try:
        into.mkdir(parents=True)
    except FileExistsError:
        do = "Give the name of a new folder"
        raise UsageError("it is there already", where=f"--into {into}", do=do) from None
    for name in names:
        if Path(name).name != name:
            raise Malformed(f"a log has the name {name!r}", where=f"run {run}")
        (into / name).write_bytes(runs.log_text(run, name))
    report({"run": run, "folder": str(into), "files": names})
    line(f"Wrote {len(names)} logs of {run} to {into}", style="bold")


def _goes_on(client: Client, run: str) -> bool:
    """Whether a run goes on: it runs, or has given way and its experiment waits for its turn."""
    from govray.platform.client.session import ENDED

    found = client.runs.get(run)
    if found.state != "STOPPED":
        return found.state in GOING
    whole = client.experiments.get(found.experiment)
    return whole.kind == "train" and whole.state not in ENDED


def _following(
    runs: Runs, run: str, name: str, at: dict[str, int | None], *, lines: int, search: str
) -> Iterator[str]:
    """The lines of a log from ``at`` on, to its end, where ``at`` is then."""
    while True:
        begin = at[name]
        most = lines if begin is None else MOST_LINES
        part = runs.log(run, name, lines=most, search=search or None, **{"from": begin})
        at[name] = int(part["next"])
        yield from (each["text"] for each in part["lines"])
        if at[name] == begin or at[name] == int(part["size"]):
            return


@app.command("delete")
def delete(run: RunId) -> None:
    """Mark a run to be deleted. It is removed from storage after its project's time."""
    tell_marked([service().runs.delete(run)])
    line(f"Take it back  govray runs restore {quote(run)}")


@app.command("restore")
def restore(run: RunId) -> None:
    """Take the mark of a run back, before it is removed."""
    tell_restored([service().runs.restore(run)])


def tell_marked(found: list[Deletion]) -> None:
    report([each.model_dump(by_alias=True) for each in found])
    for each in found:
        what = "its checkpoints go" if each.attested else "it goes"
        line(f"{each.run}  marked: {what} after {each.gone_after}")


def tell_restored(found: list[Deletion]) -> None:
    report([each.model_dump(by_alias=True) for each in found])
    for each in found:
        line(f"{each.run}  stays")
