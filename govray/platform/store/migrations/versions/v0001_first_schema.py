"""The first schema: the tables of ``govray.platform.store.tables``, as they are.

Until 0.1.0 is released the schema changes with the classes, and no store outlives it. The release
writes the tables out here (``alembic revision --autogenerate``). From then on each change of them
is a migration of its own, and none imports the classes, for they go on.
"""

from __future__ import annotations

from datetime import UTC, datetime

from alembic import op

from govray.platform.store.tables import TABLES

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables, empty but for a workspace and a project ``default``."""
    TABLES.create_all(op.get_bind(), checkfirst=False)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    made = {"name": "default", "description": "", "archived": False, "created": now, "user": ""}
    op.bulk_insert(TABLES.tables["workspace"], [made])
    op.bulk_insert(TABLES.tables["project"], [{**made, "workspace": "default", "settings": {}}])


def downgrade() -> None:
    TABLES.drop_all(op.get_bind(), checkfirst=False)
