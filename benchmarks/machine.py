"""What a figure depends on, for the first line that a benchmark prints: machine and versions."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import govray


def processor() -> str:
    """The processor's model, as the system names it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions(*packages: str) -> str:
    """Processor, Python, and these packages beside govray."""
    told = [f"{name} {version(name)}" for name in packages] + [f"govray {govray.__version__}"]
    return f"{processor()}; Python {platform.python_version()}, {', '.join(told)}"
