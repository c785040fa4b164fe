"""What opens the records of corpora whose records are under commitments."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "recordcommitment",
        sa.Column("credential", sa.String(), nullable=False),
        sa.Column("commitment", sa.String(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["credential"], ["credential.digest"]),
        sa.PrimaryKeyConstraint("credential"),
    )


def downgrade() -> None:
    op.drop_table("recordcommitment")
