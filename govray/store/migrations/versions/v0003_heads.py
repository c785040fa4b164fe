"""Every signed head of a ledger that was seen. Those known now are the ledgers' own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "head",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("root", sa.String(), nullable=False),
        sa.Column("checkpoint", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run", "size", "root"),
    )
    op.execute(
        "INSERT INTO head (run, size, root, checkpoint) "
        "SELECT run, size, root, checkpoint FROM ledger"
    )


def downgrade() -> None:
    op.drop_table("head")
