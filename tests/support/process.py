"""Commands that serve, as processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from govray.cli import main

COMMAND = "from govray.cli import main; raise SystemExit(main())"


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running ``govray serve`` on a port of its own, and its address."""
    with listening(folder, "serve", *words) as running:
        yield running


def application(patch: pytest.MonkeyPatch, *words: str) -> Any:
    """What ``govray serve`` would serve with these words, without a server or a process."""
    served: list[Any] = []
    patch.setattr(uvicorn.Server, "run", lambda self, sockets: served.append(self.config.app))
    patch.setattr(signal, "signal", lambda *_: None)
    assert main(["serve", *words, "--port", "0"]) == 0
    return served.pop()


@contextmanager
def witnessing(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running witness on a port of its own, and its address without the last slash."""
    with listening(folder, "witness", "serve", *words, stop=subprocess.Popen.terminate) as running:
        yield running


@contextmanager
def listening(
    folder: Path, *words: str, stop: Callable[[subprocess.Popen[str]], None] = subprocess.Popen.kill
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command that says where it listens, on a port of its own, and that address."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words, "--port", "0"],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+(?=/ )", line)
        assert found, (line, process.stderr and process.stderr.read())
        yield process, found[0]
    finally:
        if process.poll() is None:
            stop(process)
        process.communicate(timeout=30)
