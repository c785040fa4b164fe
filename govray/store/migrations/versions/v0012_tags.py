"""Tags of experiments: words that people put on them, which no storage knows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Make the table, empty."""
    op.create_table(
        "experimenttag",
        sa.Column("experiment", sa.String(), nullable=False),
        sa.Column("tag", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("experiment", "tag"),
    )
    op.create_index(op.f("ix_experimenttag_tag"), "experimenttag", ["tag"], unique=False)


def downgrade() -> None:
    """Drop it."""
    op.drop_index(op.f("ix_experimenttag_tag"), table_name="experimenttag")
    op.drop_table("experimenttag")
