"""Memory and processor time of a process and of those that it started, as Linux counts them.

A phase of a benchmark runs in a process of its own, so its peak memory is its own.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TICK = os.sysconf("SC_CLK_TCK")

Phase = Callable[[Path], Any]
"""What a phase does with a folder, and what it found."""
Around = Callable[[], AbstractContextManager[None]]
"""What a phase runs within, and is not measured."""


@dataclass(frozen=True)
class Cost:
    """Of one phase.

    Attributes:
        seconds: Wall time.
        cpu_seconds: Of the process and of those that it started.
        peak_gib: Resident memory at its highest, of the process with the most.
        found: What the phase returned.
    """

    seconds: float
    cpu_seconds: float
    peak_gib: float
    found: Any


def in_own_process(phase: Phase, folder: Path, around: Around = nullcontext) -> Cost:
    """Run one phase in a fresh process."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
        return pool.submit(measured, phase, folder, around).result()


def measured(phase: Phase, folder: Path, around: Around = nullcontext) -> Cost:
    """Run one phase in this process."""
    own = os.getpid()
    with around():
        began, cpu = time.perf_counter(), cpu_seconds(own)
        found = phase(folder)
        seconds = time.perf_counter() - began
        return Cost(seconds, cpu_seconds(own) - cpu, max(peaks(own)) / 2**20, found)


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
