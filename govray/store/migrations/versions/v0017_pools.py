"""The pools of the queue, and how large each is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Make the table, empty: whoever works the queue off fills it."""
    op.create_table(
        "pool",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("pool")
