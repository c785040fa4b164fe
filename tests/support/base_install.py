"""An environment that holds the base install, and commands that run there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.tree import ROOT

# Nothing of this process's own paths may leak in.
OUTSIDE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def base_install(folder: Path) -> Path:
    """The `bin` folder of a new environment below ``folder``: ``pip install .``, no extras."""
    bin = folder / "venv" / "bin"
    make = [sys.executable, "-m", "venv", "--without-pip", bin.parent]
    subprocess.run(make, check=True, timeout=120)
    # The pip of these tests is at work there: a second copy takes seconds to make.
    pip = [sys.executable, "-m", "pip", "--python", bin / "python", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", ROOT], check=True, timeout=500)
    return bin
