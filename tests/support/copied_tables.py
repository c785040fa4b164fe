"""Tables of a new SQLite store, copied from one that the migration made."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Engine

from govray.platform.store import database


def copy_tables(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let `open_store` copy, until ``patch`` is undone; the first store lies in ``folder``."""
    first, upgrade = folder / "first.db", database.to_head

    def to_head(engine: Engine) -> None:
        if engine.dialect.name != "sqlite":
            upgrade(engine)
            return
        if not first.is_file():
            made = database.connect(database.parse_url(f"sqlite:///{first}"))
            upgrade(made)
            made.dispose()
        connection = engine.raw_connection()
        source = sqlite3.connect(first)
        try:
            source.backup(connection.driver_connection)  # type: ignore[arg-type]
        finally:
            source.close()
            connection.close()

    patch.setattr(database, "to_head", to_head)
