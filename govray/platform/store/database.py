"""Open the store: a file of SQLite, or a PostgreSQL server, at exactly this govray's revision.

SQLite runs in WAL mode: readers go on while one writer writes, writers wait for each other up to
`BUSY_MS`. A transaction that writes takes the write lock at its first change. So it never fails
half-way because somebody wrote after its first read. `begin_writing` takes the lock before the
first read, if what is read decides what is written.
"""

from __future__ import annotations

import zlib
from functools import partial
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlmodel import Session

from govray.errors import InfrastructureFailed, Refused, UsageError
from govray.extras import install

# Bring a store's tables to a revision. Alembic, with the scripts of ``migrations/``.
#
# Each revision runs in one transaction, on SQLite too: an upgrade that is killed leaves the
# revision before. Two at once wait for each other.


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


BUSY_MS = 30_000
"""How long a writer waits for another, in milliseconds."""

_WRITERS = zlib.crc32(b"govray store writers")


def open_store(url: str, *, create: bool = False, statement_limit: float | None = None) -> Engine:
    """The store at ``url``, whose tables are those of this govray.

    Args:
        url: ``sqlite:///PATH`` or ``postgresql+psycopg://…``.
        create: Where the database is empty, or the file absent, make the tables.
        statement_limit: Seconds until PostgreSQL ends a statement, a wait for a lock included.
            SQLite has no such limit.

    Raises:
        Refused: Its tables are another govray's.
    """
    address = parse_url(url)
    shown = address.render_as_string(hide_password=True)
    file = sqlite_file(address)
    if file is not None and not create and not file.is_file():
        raise _no_store(shown)
    engine = connect(address, statement_limit=statement_limit)
    try:
        with engine.connect() as connection:
            empty = not inspect(connection).get_table_names()
            found = revision(connection)
        if empty and create:
            to_head(engine)
            return engine
        if empty:
            raise _no_store(shown)
        _check(found, shown)
    except DBAPIError as error:
        engine.dispose()
        raise unreachable(error, shown) from None
    except BaseException:
        engine.dispose()
        raise
    return engine


def parse_url(url: str) -> URL:
    """``url``, if it names a database that a store can be in."""
    do = "Give sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE"
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        # The URL is not repeated: it may hold a password.
        raise UsageError("the store's URL cannot be read", do=do) from None
    if address.drivername == "postgresql":
        address = address.set(drivername="postgresql+psycopg")
    if address.drivername == "sqlite" and address.database not in (None, "", ":memory:"):
        return address
    if address.drivername == "postgresql+psycopg":
        return address
    raise UsageError(f"a store is not kept in {address.drivername} at this address", do=do)


def sqlite_file(address: URL) -> Path | None:
    """The file that ``address`` names, or None for a server."""
    return Path(str(address.database)) if address.drivername == "sqlite" else None


def connect(address: URL, *, statement_limit: float | None = None) -> Engine:
    """An engine, whatever is at ``address``. `open_store` is for those who use the tables."""
    try:
        if sqlite_file(address) is None:
            engine = create_engine(address, pool_pre_ping=True)
            event.listen(engine, "connect", _in_utf8, insert=True)  # before SQLAlchemy asks a thing
            if statement_limit is not None:
                limit = f"SET statement_timeout = {round(statement_limit * 1000)}"
                event.listen(engine, "connect", partial(_say, limit))
            return engine
        engine = create_engine(
            address,
            # The lock of a writer is taken, and waited for, when its transaction begins.
            connect_args={"timeout": BUSY_MS / 1000, "isolation_level": "IMMEDIATE"},
        )
    except (ImportError, NoSuchModuleError) as error:
        raise UsageError(
            f"the driver of {address.drivername} is not installed ({error})",
            do=f"Run {install('serve')}",
        ) from None
    event.listen(engine, "connect", _settings)
    return engine


def begin_writing(session: Session) -> None:
    """Let no other writer in until ``session`` commits: what it reads from here on stays so.

    Only writers that call this wait on PostgreSQL (an advisory lock); on SQLite all do. A second
    call in the same transaction changes nothing.
    """
    connection = session.connection()
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.dbapi_connection
        if not driver.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS})")


def unreachable(error: DBAPIError, shown: str) -> InfrastructureFailed:
    """``error`` of a driver as one that a user can read; ``shown`` is the URL without password."""
    first = str(error.orig).strip().splitlines() or [type(error.orig).__name__]
    return InfrastructureFailed(
        f"the store cannot be used ({first[0]})",
        where=shown,
        do="Look whether the server runs, or the file and its folder can be written",
    )


def _no_store(shown: str) -> UsageError:
    return UsageError(
        "there is no store here", where=shown, do=f"Say `govray store upgrade --store {shown}`"
    )


def _check(found: str | None, shown: str) -> None:
    newest = head()
    if found == newest:
        return
    if found is not None and found not in revisions():
        raise Refused(
            f"the store is at revision {found}, which this govray does not know",
            where=shown,
            do="Use the newer govray that wrote it; `govray store upgrade` only goes forward",
        )
    raise Refused(
        f"the store is at revision {found or 'none'}, and this govray needs {newest}",
        where=shown,
        do=f"Stop what uses it, then say `govray store upgrade --store {shown}`",
    )


def _say(statement: str, connection: Any, _record: object) -> None:
    """Say something to every new connection, whatever becomes of its first transaction."""
    before, connection.autocommit = connection.autocommit, True
    with connection.cursor() as cursor:
        cursor.execute(statement)
    connection.autocommit = before


def _in_utf8(connection: Any, _record: object) -> None:
    found, name = connection.info.parameter_status("server_encoding"), connection.info.dbname
    if found != "UTF8":
        raise Refused(
            f"the database keeps text as {found}, and a store is in UTF8",
            where=f"database {name}",
            do=f"Make it anew: createdb --encoding UTF8 --template template0 {name}",
        )


def _settings(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    cursor.close()
