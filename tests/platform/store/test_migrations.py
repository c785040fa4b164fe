"""The migrations make the tables that the classes say, up and down, on both databases."""

from __future__ import annotations

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Column, Engine, MetaData, Table, inspect, text
from sqlalchemy.exc import DBAPIError

from govray.platform.store import database

# `to_head` as it is before tests copy tables (`copied_tables.py`).
from govray.platform.store.database import connect, parse_url, to_head
from govray.platform.store.tables import TABLES

ROW = (
    'INSERT INTO model (name, description, labels, created, "user")'
    " VALUES ('kept', '', '{}', '', 'ada')"
)


def differences(engine: Engine, tables: MetaData = TABLES) -> list[object]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, tables))


def down_to(engine: Engine, target: str) -> None:
    with engine.begin() as connection:
        command.downgrade(database._config(connection), target)


def tables_of(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names()) - {"alembic_version"}


def test_the_migrations_make_the_tables_of_the_classes(empty_url: str) -> None:
    engine = connect(parse_url(empty_url))
    to_head(engine)
    assert differences(engine) == []
    assert tables_of(engine) == set(TABLES.tables)
    more = MetaData()
    for table in TABLES.tables.values():
        table.to_metadata(more)
    more.tables["model"].append_column(Column("colour", TABLES.tables["model"].c.name.type))
    Table("another", more, Column("id", TABLES.tables["model"].c.name.type))
    assert len(differences(engine, more)) == 2  # the comparison sees a difference
    engine.dispose()


def test_the_schema_goes_down_and_up_again(empty_url: str) -> None:
    engine = connect(parse_url(empty_url))
    to_head(engine)
    with engine.begin() as connection:
        connection.execute(text(ROW))
    to_head(engine)  # nothing to do
    with engine.connect() as connection:
        assert connection.execute(text("SELECT name FROM model")).scalars().all() == ["kept"]
        assert database.revision(connection) == database.head()
    down_to(engine, "base")
    assert tables_of(engine) == set()
    to_head(engine)
    assert differences(engine) == []
    engine.dispose()


def test_an_upgrade_that_fails_half_way_leaves_nothing(empty_url: str) -> None:
    """`token` comes after half of the tables; one of that name is in the way."""
    engine = connect(parse_url(empty_url))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE token (x integer)"))
    with pytest.raises(DBAPIError, match="token"):
        to_head(engine)
    assert tables_of(engine) == {"token"}
    engine.dispose()
