"""The place of a waiting entry in its line, as the reconciler saw it last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the column, empty until the reconciler's next pass."""
    with op.batch_alter_table("submission") as table:
        table.add_column(sa.Column("position", sa.Integer(), nullable=True))


def downgrade() -> None:
    """Drop it."""
    with op.batch_alter_table("submission") as table:
        table.drop_column("position")
