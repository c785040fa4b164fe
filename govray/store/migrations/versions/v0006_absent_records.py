"""Models whose records could not be indexed, since their run's prepared folder was not there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Make the table; every model of the schema before has its records in its manifest."""
    op.create_table(
        "absentrecords",
        sa.Column("attestation", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["attestation"], ["attestation.digest"]),
        sa.PrimaryKeyConstraint("attestation"),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("absentrecords")
