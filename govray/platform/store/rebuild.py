"""A new index in the place of the old one: built beside it, then exchanged in one transaction.

Beside means another file next to a SQLite file, or another schema of the same PostgreSQL database.
Readers see the old index until the exchange, and the new one after it. A killed rebuild leaves the
old one unchanged.

What cannot be derived from storage is kept: accounts, tokens, tags, the registry and the audit
log. So are the queue, webhooks with what they were told, and workspaces with their projects and
roles. So are rights holders' cases, the owners of experiments, the public attestations, the seen
heads of ledgers, and the tombstones of deleted runs. Lost is what storage has no longer: the rows
of deleted runs and checkpoints. What the queue knows of a run's owner counts before what the old
index had.
"""

from __future__ import annotations

import fcntl
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, bindparam, column, insert, select, table, update
from sqlalchemy.schema import CreateSchema, DropSchema
from sqlmodel import Session, col

from govray.errors import Refused
from govray.platform.store import deletions, tables
from govray.platform.store.database import begin_writing, connect, sqlite_file
from govray.platform.store.run_owners import first_tags, settle

KEPT = frozenset(
    {"account", "token", "audit", "model", "modelversion", "experimenttag"}
    | {"queueentry", "lease", "pool"}
    | {"workspace", "project", "rolebinding"}
    | {"webhook", "alert", "delivery", "reverification"}
    | {"browsersession", "signinattempt", "repeat", "task_ticket", "rightscase", "deletion"}
)
"""The tables that storage does not know."""

_NEW = "govray_rebuilt"


def derived() -> Sequence[Table]:
    """The tables that are made again, those that others refer to first."""
    return [each for each in tables.TABLES.sorted_tables if each.name not in KEPT]


def registered_folders(store: Engine, new: Engine) -> dict[str, str]:
    """Attestation → folder of the registry's models that a new index does not have yet."""
    attestation, version = _table("attestation"), _table("modelversion")
    of_version = attestation.c.digest == version.c.attestation
    with store.connect() as connection:
        needed = connection.execute(
            select(attestation.c.digest, attestation.c.folder).join(version, of_version)
        ).all()
    with new.connect() as connection:
        there = set(connection.scalars(select(attestation.c.digest)))
    return {row.digest: row.folder for row in needed if row.digest not in there and row.folder}


def rebuild(engine: Engine, fill: Callable[[Engine], None]) -> None:
    """Replace what is derived by what ``fill`` writes into an empty index.

    Args:
        fill: Writes and commits. What it raises leaves the store as it was.

    Raises:
        Refused: A version in the registry has an attestation that the new index lacks.
    """
    old = sqlite_file(engine.url)
    # What a rebuild that was killed left is cleared away first; two at once are refused.
    with _file_beside(engine, old) if old else _schema_beside(engine) as (new, schema, file):
        _take_heads(engine, new)
        fill(new)
        # The registry may lack what storage has, but not the other way round.
        new.dispose()
        with engine.connect() as connection:
            if file is not None:  # not possible inside a transaction
                connection.exec_driver_sql(f"ATTACH DATABASE ? AS {_NEW}", (str(file),))
                connection.commit()
            try:
                with Session(connection) as session:
                    begin_writing(session)
                    before = {each.id for each in session.scalars(select(tables.ExperimentRow))}
                    _exchange(session.connection(), schema)
                    _settle_owners(session, before)
                    deletions.tell_lineages(session)
                    session.commit()
            finally:
                connection.rollback()
                if file is not None:
                    connection.exec_driver_sql(f"DETACH DATABASE {_NEW}")


def _take_heads(store: Engine, new: Engine) -> None:
    """Those that were seen, so that what fills the new index is compared with them."""
    head = _table("head")
    with store.connect() as connection:
        rows = _rows(connection, head)
    if rows:
        with new.begin() as connection:
            connection.execute(insert(head), rows)


def _table(name: str) -> Any:
    return tables.TABLES.tables[name]


def _rows(connection: Connection, of: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(select(of)).mappings()]


@contextmanager
def _file_beside(engine: Engine, old: Path) -> Iterator[tuple[Engine, str, Path | None]]:
    """An empty index, the name of its schema as the store sees it, and its file if it has one."""
    file = old.with_name(f"{old.name}.rebuild")
    with open(f"{file}.lock", "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _running() from None
        _unlink(file)
        new = connect(engine.url.set(database=str(file)))
        try:
            tables.TABLES.create_all(new, tables=derived())
            yield new, _NEW, file
        finally:
            new.dispose()
            _unlink(file)


@contextmanager
def _schema_beside(engine: Engine) -> Iterator[tuple[Engine, str, Path | None]]:
    new = connect(engine.url).execution_options(schema_translate_map={None: _NEW})
    with engine.connect() as holding:
        # Held by this connection, so it ends with the process, whatever becomes of that.
        key = zlib.crc32(b"govray store rebuild")
        if not holding.exec_driver_sql(f"SELECT pg_try_advisory_lock({key})").scalar():
            raise _running()
        holding.commit()
        try:
            _drop_schema(engine)
            with engine.begin() as connection:
                connection.execute(CreateSchema(_NEW))
            tables.TABLES.create_all(new, tables=derived())
            yield new, _NEW, None
        finally:
            new.dispose()
            try:
                _drop_schema(engine)
            finally:  # the pool keeps the connection, and with it the lock
                holding.exec_driver_sql(f"SELECT pg_advisory_unlock({key})")
                holding.commit()


def _drop_schema(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(DropSchema(_NEW, cascade=True, if_exists=True))


def _unlink(file: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{file}{suffix}").unlink(missing_ok=True)


def _running() -> Refused:
    return Refused("the index is being rebuilt by another process", do="Wait for it")


def _exchange(connection: Connection, schema: str) -> None:
    experiment, attestation = _table("experiment"), _table("attestation")
    version, head = _table("modelversion"), _table("head")
    _require_registered(connection, schema)
    owners = select(experiment.c.id, experiment.c.project, experiment.c.user)
    kept_owners = [
        {"known": row.id, "to_project": row.project, "to_user": row.user}
        for row in connection.execute(owners)
    ]
    public = select(attestation.c.digest).where(attestation.c.public)
    kept_public = [{"known": digest} for digest in connection.scalars(public)]
    versions = _rows(connection, version)
    seen = _rows(connection, head)
    # The registry refers to attestations, so it steps aside: in this transaction, unseen.
    connection.execute(version.delete())
    for each in reversed(derived()):
        connection.execute(each.delete())
    for each in derived():
        names = [c.name for c in each.columns]
        source = table(each.name, *(column(name) for name in names), schema=schema)
        rows = select(*(source.c[name] for name in names))
        connection.execute(insert(each).from_select(names, rows))
    there = _rows(connection, head)
    if missed := [each for each in seen if each not in there]:  # seen while the index was built
        connection.execute(insert(head), missed)
    if versions:
        connection.execute(insert(version), versions)
    if kept_owners:
        of_owner = update(experiment).where(experiment.c.id == bindparam("known"))
        connection.execute(
            of_owner.values(project=bindparam("to_project"), user=bindparam("to_user")),
            kept_owners,
        )
    if kept_public:
        of_digest = update(attestation).where(attestation.c.digest == bindparam("known"))
        connection.execute(of_digest.values(public=True), kept_public)


def _settle_owners(session: Session, before: set[str]) -> None:
    """Give each experiment that was submitted to whom its entry in the queue says, and a new one
    that was not its tags."""
    e, q = tables.ExperimentRow, tables.QueueEntry
    for experiment, row in session.execute(select(e, q).outerjoin(q, col(q.id) == col(e.id))):
        if row is not None:
            settle(experiment, row)
        elif experiment.id not in before:
            first_tags(session, experiment)


def _require_registered(connection: Connection, schema: str) -> None:
    version = _table("modelversion")
    found = table("attestation", column("digest"), schema=schema)
    missing = connection.execute(
        select(version.c.model, version.c.version)
        .where(version.c.attestation.not_in(select(found.c.digest)))
        .order_by(version.c.model, version.c.version)
    ).all()
    if missing:
        names = ", ".join(f"{row.model} {row.version}" for row in missing[:10])
        raise Refused(
            f"the storage lacks the model of {len(missing)} registered versions: {names}",
            do="Give the storage that they lie in too; the index stays as it was",
        )
