"""As `tests/engine/jax`: on CPUs, and compiled quickly."""

from tests.engine.jax.conftest import collect_ignore_glob

__all__ = ["collect_ignore_glob"]
