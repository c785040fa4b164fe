"""The register's tables and the values that are their rows, in a database of their own.

Invariants, which the database keeps too, by triggers:

* What was accepted, and what was posted, is written once. It is never changed and never deleted.
* Of an attempt the flag changes, once. Its secret changes while nobody has posted with it.

The service, the queue and the jobs have no access to this database. They send forms to the door.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    Engine,
    ForeignKey,
    Index,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    literal_column,
    make_url,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from govray.errors import InfrastructureFailed, UsageError
from govray.extras import install
from govray.governance.formats.bounds import Positive, ShortText
from govray.governance.formats.document import Digest, Document, Timestamp
from govray.governance.submission.register_forms import (
    AcceptanceForm,
    AttemptForm,
    PostForm,
    RunName,
)
from govray.governance.submission.submission import SubmissionId

BUSY_S = 30.0
"""How long a writer waits for another."""

AttestedState = Literal["ATTESTED", "NOT_ATTESTED"]


class Accepted(AcceptanceForm):
    """A submission as it was accepted: when, by the attestor's clock, and under which trust root,
    which is the attestor's own."""

    registered: Timestamp
    trust_root: Digest


class Attempt(AttemptForm):
    """An attempt of a submission. ``flagged``: why, if more than one process posted as it."""

    submission: SubmissionId
    opened: Timestamp
    flagged: ShortText | None = None


class Posted(PostForm):
    """What an attempt posted. ``at``: when, by the attestor's clock."""

    submission: SubmissionId
    attempt: Positive
    at: Timestamp


class RunOutcome(Document):
    """What became of a run: the digest of its attestation, or why it has none."""

    submission: SubmissionId
    run: RunName
    state: AttestedState
    digest: Digest | None = None
    why: ShortText | None = None
    at: Timestamp


TABLES = MetaData()

accepted = Table(
    "register_accepted",
    TABLES,
    Column("submission", String, primary_key=True),
    Column("document", Text, nullable=False),
)
attempts = Table(
    "register_attempts",
    TABLES,
    Column("submission", ForeignKey(accepted.c.submission), primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("secret", String, nullable=False),
    Column("facts", String, nullable=False),
    *(Column(each, String) for each in ("image", "pip", "uv_lock")),
    Column("opened", String, nullable=False),
    Column("flagged", Text),
)
posted = Table(
    "register_posted",
    TABLES,
    Column("submission", ForeignKey(accepted.c.submission), primary_key=True),
    Column("run", String, primary_key=True),
    Column("attempt", BigInteger, primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("kind", String, nullable=False),
    Column("branch", BigInteger, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("commit", String),
    Column("ledger_size", BigInteger, nullable=False),
    Column("ledger_root", String),
    Column("previous", String),
    Column("at", String, nullable=False),
)
FINISHED = posted.c.kind == literal_column("'finished'")  # as SQLite compares it with the index's
Index(
    "register_finished",
    posted.c.submission,
    posted.c.run,
    sqlite_where=FINISHED,
    postgresql_where=FINISHED,
)
attested = Table(
    "register_attested",
    TABLES,
    Column("submission", ForeignKey(accepted.c.submission), primary_key=True),
    Column("run", String, primary_key=True),
    Column("state", String, nullable=False),
    Column("digest", String),
    Column("why", Text),
    Column("at", String, nullable=False),
)

_KEPT = "the register is never changed"
_SQLITE = (
    "CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table} "
    f"BEGIN SELECT RAISE(ABORT, '{_KEPT}'); END"
)
_FUNCTION = (
    "CREATE OR REPLACE FUNCTION register_kept() RETURNS trigger LANGUAGE plpgsql AS "
    f"$$ BEGIN RAISE EXCEPTION '{_KEPT}'; END $$"
)
_POSTGRESQL = (
    "CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table} "
    "FOR EACH STATEMENT EXECUTE FUNCTION register_kept()"
)


def _keep(table: Table) -> None:
    """Let the database itself refuse to change or delete rows of a table."""

    def made(statement: str, dialect: str) -> None:
        ddl = DDL(statement).execute_if(dialect=dialect)  # type: ignore[no-untyped-call]
        event.listen(table, "after_create", ddl)

    made(_FUNCTION, "postgresql")
    for verb in ("UPDATE", "DELETE", "TRUNCATE"):
        made(_POSTGRESQL.format(table=table.name, verb=verb), "postgresql")
        if verb != "TRUNCATE":
            made(_SQLITE.format(table=table.name, verb=verb), "sqlite")


_keep(accepted)
_keep(posted)


def open_tables(url: str) -> Engine:
    """The register's database, with its tables.

    Args:
        url: ``sqlite:///PATH`` or ``postgresql+psycopg://…``.

    Raises:
        UsageError: The URL names no such database.
        InfrastructureFailed: The database cannot be used.
    """
    do = "Give sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE"
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        # The URL is not repeated: it may hold a password.
        raise UsageError("the register's URL cannot be read", do=do) from None
    shown = address.render_as_string(hide_password=True)
    file = (address.database or ":memory:") if address.drivername == "sqlite" else None
    if file == ":memory:" or address.drivername not in ("sqlite", "postgresql+psycopg"):
        raise UsageError(f"a register is not kept in {address.drivername}", where=shown, do=do)
    try:
        if file:
            Path(file).touch(mode=0o600)
            engine = create_engine(address, connect_args={"timeout": BUSY_S})
            event.listen(engine, "connect", _settings)
            event.listen(engine, "begin", _take_lock)
        else:
            engine = create_engine(address, pool_pre_ping=True)
        TABLES.create_all(engine)
    except (ImportError, NoSuchModuleError) as error:
        raise UsageError(
            f"the driver of {address.drivername} is not installed ({error})",
            do=f"Run {install('serve')}",
        ) from None
    except (DBAPIError, OSError) as error:
        raise InfrastructureFailed(
            f"the register cannot be used ({str(getattr(error, 'orig', error))[:300]})",
            where=shown,
            do="Look whether the server runs, or the file and its folder can be written",
        ) from None
    return engine


def _settings(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # a transaction begins where `_take_lock` begins it
    for each in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {each}")


def _take_lock(connection: Any) -> None:
    """What a transaction reads decides what it writes, so nobody writes in between."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")
