"""As `tests/jax`: on CPUs, and compiled quickly."""

from tests.jax.conftest import collect_ignore_glob

__all__ = ["collect_ignore_glob"]
