"""``govray witness serve`` as a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.process import COMMAND


@contextmanager
def witnessing(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running witness on a port of its own, and its address without the last slash."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "witness", "serve", "--port", "0", *words],
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
            process.terminate()
        process.communicate(timeout=30)
