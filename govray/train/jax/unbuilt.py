"""What a run over JAX can't do yet: refused before anything is read, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from govray.errors import UsageError


def refuse_unbuilt(given: Mapping[str, Any]) -> None:
    """Refuse what is built over torch alone.
    ``given``: what is asked for, by the name that people know; None or false where it is not."""
    for name, asked in given.items():
        if asked:
            raise UsageError(
                f"{name} is built over torch alone",
                where="framework: jax",
                do=f"Leave {name} out, or train with torch",
            )
