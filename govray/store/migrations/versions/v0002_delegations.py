"""The delegations that models were verified with, so that their operators are known over HTTP."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "delegations",
        sa.Column("trust_root", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("lines", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["trust_root"], ["trustroot.digest"]),
        sa.PrimaryKeyConstraint("trust_root", "digest"),
    )


def downgrade() -> None:
    op.drop_table("delegations")
