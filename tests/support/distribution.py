"""What the distribution's packages bring, and tests skip without; in CI they fail instead."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

SOFTHSM = sorted(Path("/usr/lib").glob("**/libsofthsm2.so"))


def require_openssl() -> None:
    require(shutil.which("openssl") is not None, "openssl")


def require_softhsm() -> Path:
    """The library of SoftHSM2."""
    require(bool(SOFTHSM) and shutil.which("softhsm2-util") is not None, "softhsm2")
    return SOFTHSM[0]


def require(there: bool, package: str) -> None:
    if not there and "CI" in os.environ:
        pytest.fail(f"no {package}: CI has to install it")
    if not there:
        pytest.skip(f"no {package}: install the distribution's package")
