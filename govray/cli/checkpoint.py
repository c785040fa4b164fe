"""``govray checkpoint``: what a run has committed and why it stays; copy it, delete the rest.

`gc` applies the rules that the run itself applies after each commit, and also deletes what a crash
left behind. It does not touch a run that is being driven.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from govray.cli.fetched import Into, tell, with_bar
from govray.cli.option_group import Given, Run, given_place
from govray.cli.output import field, in_bytes, line, print_table, report, table
from govray.cli.process import account_name
from govray.cli.server_option import service
from govray.cli.told import RunId, tell_rows
from govray.errors import Malformed, Refused, UsageError

app = typer.Typer(help="List a run's checkpoints, pin, copy or download one, delete the rest.")
remote = typer.Typer(help="List the checkpoints of a run, pin or download one.")


Checkpoint = Annotated[
    Given,
    typer.Argument(
        metavar="CHECKPOINT",
        parser=given_place,
        help="RUN/checkpoint_000000100, in a run's folder or below its URL.",
    ),
]
Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why it is kept, for later readers.")
]


@app.command("ls")
def ls(run: Run) -> None:
    """List what a run has committed, newest first, and why each stays.

    Reads names, sizes and manifests, but no tensors.
    """
    from govray.train.checkpoint.holds import read_holds
    from govray.train.checkpoint.pins import read_pins
    from govray.train.checkpoint.retention import kept
    from govray.train.run_folder import event_rows, events
    from govray.train.state.garbage_collection import inventory

    found, pins, held = inventory(run), read_pins(run), read_holds(run)
    times: dict[tuple[int, str], str] = {}
    with suppress(Malformed):  # a log that cannot be read hides no checkpoint
        times = event_rows.commit_times(events.read(run))
    stay = kept(found.commits, found.rules, pins)
    rows: list[dict[str, Any]] = [
        {
            "name": commit.name,
            "step": commit.step,
            "size": commit.size,
            "committed": times.get((commit.step, commit.digest)),
            "loss": commit.loss,
            "value": commit.value,
            "kept": [*stay.get(commit.name, ()), *(["held"] if held else [])],
            "pin": pins.get(commit.name),
        }
        for commit in found.commits
    ]
    report(
        {
            "run": str(run),
            "metric": found.rules.metric,
            "commits": rows,
            "holds": held,
            "damaged": dict(found.damaged),
            "leftovers": dict(found.leftovers),
        }
    )
    if rows:
        metrics = {"loss": "loss"} | ({"value": found.rules.metric} if found.rules.metric else {})
        names = ("step", "size", "committed", *metrics.values(), "kept because")
        grid = table(*names, right=("step", "size"))
        for row in rows:
            grid.row(
                str(row["step"]),
                in_bytes(row["size"]),
                row["committed"] or "-",
                *("-" if row[each] is None else f"{row[each]:.4f}" for each in metrics),
                _reasons(row),
            )
        print_table(grid)
    else:
        line("nothing is committed")
    for name, why in found.damaged.items():
        field("damaged", f"{name}: {why}")
    for name, size in found.leftovers.items():
        field(
            "leftover", f"{name}, {in_bytes(size)}: never loads; `govray checkpoint gc` deletes it"
        )


@app.command("gc")
def gc(
    run: Run,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted; delete nothing.")
    ] = False,
) -> None:
    """Delete the checkpoints that no rule, pin or hold keeps, and what a crash left behind."""
    from govray.train.checkpoint.holds import read_holds
    from govray.train.checkpoint.storage import OBJECTS, storage_of
    from govray.train.run_folder.run_lock import driving
    from govray.train.state.garbage_collection import apply, inventory, surplus, sweep

    objects = storage_of(run).objects()
    found = inventory(run)
    if driving(run):
        raise UsageError(
            "the run is being driven, and deletes old checkpoints itself",
            where=str(run),
            do="Try again when it has ended",
        )
    held = sorted(read_holds(run))
    gone: dict[str, int] = {}
    if not held:
        gone = {each.name: each.size for each in surplus(run, found)}
        unnamed = found.unnamed(objects, gone)
        gone |= dict(found.leftovers)
        gone |= {f"{OBJECTS}/{name}": size for name, size in unnamed.items()}
    if not dry_run:
        deleted = {*apply(run, found.rules), *sweep(run)}
        gone = {name: size for name, size in gone.items() if name in deleted}
    report({"run": str(run), "deleted": gone, "dryRun": dry_run})
    for name, size in gone.items():
        line(f"{'would delete' if dry_run else 'deleted'}  {name}  {in_bytes(size)}")
    count = sum(name.startswith(f"{OBJECTS}/") for name in gone)
    shared = f" and {count} objects that they shared" if count else ""
    line(f"{len(gone) - count} folders{shared}, {in_bytes(sum(gone.values()))}")
    if held:
        line(f"Nothing is deleted: the run is held for {', '.join(held[:3])}.")


@app.command("pin")
def pin(checkpoint: Checkpoint, reason: Reason = "") -> None:
    """Keep a checkpoint whatever the run's rules say."""
    from govray.train.checkpoint import pins

    folder = _of_a_disk(checkpoint)
    with _writing(folder):
        kept = pins.pin(folder.parent, folder.name, who=account_name(), reason=reason)
    report({"checkpoint": str(checkpoint), "pin": kept})
    line(f"{folder.name}  {kept}")


@app.command("unpin")
def unpin(checkpoint: Checkpoint) -> None:
    """Let the run's rules decide about a checkpoint again, unless another run starts from it."""
    from govray.train.checkpoint import pins

    folder = _of_a_disk(checkpoint)
    with _writing(folder):
        if not folder.is_dir() and folder.name not in pins.read_pins(folder.parent):
            raise UsageError(
                "no such checkpoint, and no pin of that name",
                where=str(checkpoint),
                do=f"See govray checkpoint ls {quote(str(folder.parent))}",
            )
        pins.unpin(folder.parent, folder.name)
    report({"checkpoint": str(checkpoint), "pin": None})
    line(f"{folder.name}  is not pinned")


@app.command("copy")
def copy(
    checkpoint: Annotated[
        Given,
        typer.Argument(
            metavar="CHECKPOINT",
            parser=given_place,
            help="RUN/checkpoint_000000100; or RUN, or the URL of its commits, for the newest.",
        ),
    ],
    storage: Annotated[
        Given,
        typer.Argument(
            metavar="STORAGE", parser=given_place, help="Another storage path, or its URL."
        ),
    ],
    without_rows: Annotated[
        bool,
        typer.Option("--without-rows", help="Leave out the packed rows, which hold the records."),
    ] = False,
) -> None:
    """Copy a checkpoint and the governance that it carries to STORAGE, as a run that can go on.

    The run's own folder, its policy and its credentials need not be there any more. Every byte is
    compared with its digest.
    """
    from govray.train.state.copied_checkpoint import copy_checkpoint

    done = copy_checkpoint(checkpoint, storage, rows=not without_rows)
    report(
        {
            "checkpoint": str(checkpoint),
            "run": str(done.run),
            "step": done.step,
            "digest": done.digest,
            "bytes": done.size,
            "rows": [str(each) for each in done.rows],
            "missing": list(done.missing),
        }
    )
    line(f"copied  {done.run}  step {done.step}, {in_bytes(done.size)}")
    for each in done.rows:
        field("rows", each)
    for what in done.missing:
        field("not here", f"{what}: put the folder into {storage} before the run is resumed")
    line(f"Next  govray runs resume {quote(str(done.run))} --carried --trust-root TRUSTED_ROOT")


Step = Annotated[int, typer.Argument(metavar="STEP", min=0, help="The checkpoint's step.")]


@remote.command("ls")
def list_indexed(run: RunId) -> None:
    """List what a run has committed as the service knows it, newest first, and what is pinned."""
    runs = service().runs
    pins: dict[int, str] = {}
    with suppress(Refused):  # of a run whose folder the service does not reach
        pins = {each.step: each.reason or "" for each in runs.pins(run).items}
    rows = [
        {**each.model_dump(by_alias=True), "pinned": each.step in pins, "pin": pins.get(each.step)}
        for each in sorted(runs.checkpoints(run), key=lambda each: -each.step)
    ]
    tell_rows(
        rows,
        "step, state, size, committed: at, pinned",
        "nothing is committed, as far as the service has indexed the run",
        right=("step", "size"),
        cells={
            "size": lambda row: in_bytes(int(row["bytes"])),
            "pinned": lambda row: (row["pin"] or "yes") if row["pinned"] else "",
        },
    )


@remote.command("pin")
def pin_indexed(run: RunId, step: Step, reason: Reason = "") -> None:
    """Keep a checkpoint whatever the run's rules say."""
    done = service().runs.pin(run, step, reason=reason)
    report(done.model_dump(by_alias=True))
    line(f"{run} step {done.step}: {done.reason}")


@remote.command("unpin")
def unpin_indexed(run: RunId, step: Step) -> None:
    """Let the run's rules decide about a checkpoint again, unless another run starts from it."""
    done = service().runs.unpin(run, step)
    report(done.model_dump(by_alias=True))
    line(f"{run} step {done.step}: not pinned")


@remote.command("download")
def download(run: RunId, step: Step, into: Into) -> None:
    """Download a checkpoint's files to the new folder DIR.

    DIR appears only once all is there and each file has its digest.
    """
    runs = service().runs
    done = with_bar(lambda told: runs.download_checkpoint(run, step, into=into, told=told))
    tell(f"step {step} of {run}", done, run=run, step=step)


app.registered_commands.append(remote.registered_commands[-1])


def _of_a_disk(checkpoint: Any) -> Path:
    if not isinstance(checkpoint, Path):
        raise UsageError("nothing is pinned at a URL", where=str(checkpoint))
    return checkpoint.absolute()


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"its pins cannot be changed: {error.strerror}", where=str(folder.parent)
        ) from None


def _reasons(row: dict[str, Any]) -> str:
    named = [f"pinned: {row['pin']}" if why == "pinned" else why for why in row["kept"]]
    return ", ".join(named) or "nothing: goes with the next commit, or `govray checkpoint gc`"
