"""A task that ends by itself: its output goes to the job's log and is kept in the storage.

``<storage>/tasks/<id>/files/output.log`` has what it wrote, up to `LARGEST` bytes. The program's
own folder is the job's working directory; ``GOVRAY_TASK_FILES`` names the folder that is kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread

from govray.errors import Stopped, UsageError
from govray.platform.tasks.endpoint import task_folder
from govray.platform.tasks.jupyter import without_secrets
from govray.platform.tasks.kept_files import LARGEST, OUTPUT, KeptFiles
from govray.printable import lines
from govray.storage.place import Place

GRACE_SECONDS = 30.0
"""How long a program may take to end after SIGTERM."""


def run_command(argv: Sequence[str], *, id: str, storage: Place, stop: Event) -> int:
    """Run a program to its end and return its exit code; that of a signal as a shell has it.

    It is anybody's code, as a notebook is: it gets no private key by its environment.

    Args:
        argv: The program and its arguments. No shell reads them.

    Raises:
        Stopped: ``stop`` was set.
    """
    with tempfile.TemporaryDirectory(prefix="govray-task-") as folder:
        files = KeptFiles(task_folder(storage, id), Path(folder), lambda text: print(text))
        environment = {**without_secrets(os.environ), "GOVRAY_TASK_FILES": str(files.path)}
        try:
            process = subprocess.Popen(  # noqa: S603 - what the task file says, no shell
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise UsageError(
                f"this cannot be started: {error.strerror}", where=argv[0], do="Look at argv"
            ) from None
        reader = Thread(target=_copy, args=(process, files.path / OUTPUT), daemon=True)
        reader.start()
        try:
            while process.poll() is None and not stop.wait(0.2):
                pass
            if process.poll() is None:
                _end(process)
        finally:
            reader.join(GRACE_SECONDS)  # what it left behind may hold the pipe
            files.send()
        if stop.is_set():
            raise Stopped("the command was told to end", where=f"task {id}")
        return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _copy(process: subprocess.Popen[bytes], path: Path) -> None:
    """What it writes, to the file and, line by line and printable, to the job's log."""
    assert process.stdout is not None
    left = LARGEST
    with process.stdout, path.open("ab") as kept:
        for line in iter(lambda: process.stdout.readline(64 * 1024), b""):  # type: ignore[union-attr]
            kept.write(line[:left])
            kept.flush()
            left -= min(left, len(line))
            text = line.decode(errors="replace").rstrip("\n")
            print(lines(text), file=sys.stdout, flush=True)
