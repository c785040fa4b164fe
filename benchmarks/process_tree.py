"""Memory and processor time of a process and of those that it started, as Linux counts them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def peaks(process: int) -> list[int]:
    """Peak resident kB of a process and of those that it started."""
    # Not getrusage: that has the peak of the process that started this one too.
    found = []
    for each in tree(process):
        with suppress(OSError, KeyError):
            found.append(int(_status(each)["VmHWM"].split()[0]))
    return found


def cpu_seconds(process: int) -> float:
    """Processor seconds of a process and of those that it started and that still run."""
    return sum(map(processor_seconds, tree(process)))


def processor_seconds(process: int) -> float:
    """Processor seconds of a process alone; none of one that has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK
    return 0.0


def tree(process: int) -> set[int]:
    """A process and those that it started, and those that these started."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, KeyError):
            parents[int(folder.name)] = int(_status(int(folder.name))["PPid"])
    ours = {process}
    while more := {each for each, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return ours


def _status(process: int) -> dict[str, str]:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return dict(line.split(":", 1) for line in lines)
