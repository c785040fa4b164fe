"""``task notebook``, ``task shell`` and ``runs tensorboard``: on this machine, for who types it.

The address that is printed holds the program's token. Nothing else on the machine can use it, and
it is worth nothing when the program has ended. On a cluster they are tasks of the queue
(docs/queue.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from govray.cli import process, task
from govray.cli.option_group import Given, given_place
from govray.cli.output import line, note, report
from govray.errors import Stopped, UsageError

if TYPE_CHECKING:
    from govray.platform.tasks.endpoint import Endpoint

app = typer.Typer(help="Notebooks, shells and programs: open one here, submit them to a cluster.")
app.registered_commands += task.app.registered_commands

Storage = Annotated[
    Given,
    typer.Option(
        "--storage",
        metavar="DIR",
        parser=given_place,
        help="The experiments' storage_path; what you make is kept below tasks/.",
    ),
]
Idle = Annotated[
    float, typer.Option("--idle-minutes", help="End after this many minutes without use.")
]


@app.command()
def notebook(storage: Storage, idle_minutes: Idle = 30.0) -> None:
    """Open JupyterLab on this machine, until Ctrl-C or until nobody uses it."""
    _run("notebook", storage, idle_minutes)


@app.command()
def shell(storage: Storage, idle_minutes: Idle = 30.0) -> None:
    """Open a terminal in the browser, whose transcript is kept."""
    _run("shell", storage, idle_minutes)


def tensorboard(storage: Storage, idle_minutes: Idle = 30.0) -> None:
    """Show the runs below a storage path in TensorBoard."""
    if isinstance(storage, Path) and not storage.is_dir():
        raise UsageError(
            "there is no such folder",
            where=str(storage),
            do="Give the storage_path of the experiments",
        )
    _run("tensorboard", storage, idle_minutes)


def _run(kind: str, storage: Any, idle_minutes: float) -> None:
    import os
    import secrets
    from contextlib import suppress
    from threading import Event

    from govray.platform.tasks.task_file import read_task
    from govray.platform.tasks.watched_program import run_watched

    read = read_task(f"kind: {kind}\nidle_minutes: {idle_minutes}\n", where="--idle-minutes")
    stop = Event()
    process.until_signal(stop)

    def ready(found: Endpoint) -> None:
        url = f"{found.address}/tasks/{found.task}/{found.landing}?token={found.token}"
        report({"url": url})
        line(f"{kind} answers at {url}  (end: Ctrl-C)")

    with suppress(Stopped):
        run_watched(
            read,
            id=f"local-{secrets.token_hex(4)}",
            storage=storage,
            environment=dict(os.environ),
            stop=stop,
            on_ready=ready,
            note=note,
        )
