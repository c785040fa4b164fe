"""The driver builds a model to learn its names: on its CPU, so that it takes no GPU's memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from govray.train.jax.joined_processes import PLATFORMS


@contextmanager
def cpu_platform() -> Iterator[None]:
    """Let JAX compute on the CPU, if it has not begun elsewhere; workers inherit nothing of it."""
    if "jax" in sys.modules:
        import jax

        jax.config.update("jax_platforms", "cpu")
        yield
        return
    before = os.environ.get(PLATFORMS)
    os.environ[PLATFORMS] = "cpu"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PLATFORMS]
        else:
            os.environ[PLATFORMS] = before
