"""Bring a store's tables to a revision. Alembic, with the scripts of ``migrations/``.

Each revision runs in one transaction, on SQLite too: an upgrade that is killed leaves the
revision before. Two at once wait for each other.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

_FOLDER = Path(__file__).parent / "migrations"


def head() -> str:
    found = _scripts().get_current_head()
    assert found is not None
    return found


def revisions() -> tuple[str, ...]:
    """All revisions that this govray knows, oldest first."""
    return tuple(reversed([script.revision for script in _scripts().walk_revisions()]))


def revision(connection: Connection) -> str | None:
    """The revision that the database is at, or None if it has none."""
    return MigrationContext.configure(connection).get_current_revision()


def to_head(engine: Engine) -> None:
    """Make or upgrade the tables. Does nothing where they are at head already."""
    with engine.begin() as connection:
        command.upgrade(_config(connection), "head")


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    # A percent sign would be read as an interpolation.
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())
