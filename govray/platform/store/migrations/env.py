"""What Alembic runs to migrate; the connection, in a transaction, is ``database.py``'s."""

from __future__ import annotations

import zlib

from alembic import context
from sqlalchemy import Connection

from govray.platform.store.tables import TABLES

connection: Connection = context.config.attributes["connection"]

# Take the lock before the revision is read: of two upgrades, the second finds nothing to do.
if connection.dialect.name == "sqlite":
    connection.exec_driver_sql("BEGIN IMMEDIATE")
else:
    lock = zlib.crc32(b"govray store upgrade")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({lock})")
context.configure(
    connection=connection,
    target_metadata=TABLES,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
