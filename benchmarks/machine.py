"""What the machine is called, for the first line that a benchmark prints."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """The processor's model, as the system names it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
