"""What the distribution's packages bring, and tests skip without; in CI they fail instead."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


def require_openssl() -> None:
    require(shutil.which("openssl") is not None, "openssl")


def require_softhsm() -> Path:
    places = ("softhsm/libsofthsm2.so", "*/softhsm/libsofthsm2.so")
    found = [path for place in places for path in Path("/usr/lib").glob(place)]
    require(bool(found) and shutil.which("softhsm2-util") is not None, "softhsm2")
    return found[0]


def require(there: bool, package: str) -> None:
    if not there and "CI" in os.environ:
        pytest.fail(f"no {package}: CI has to install it")
    if not there:
        pytest.skip(f"no {package}: install the distribution's package")
