"""The queue: what was submitted to a cluster, and the leases of those who work it off."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_INDEXED = ("name", "project", "user", "state", "submitted")


def upgrade() -> None:
    """Make both tables, empty."""
    op.create_table(
        "submission",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("config", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=True),
        sa.Column("archive", sa.String(), nullable=True),
        sa.Column("forked_from", sa.String(), nullable=True),
        sa.Column("run", sa.String(), nullable=True),
        sa.Column("job", sa.String(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("submitted", sa.String(), nullable=False),
        sa.Column("started", sa.String(), nullable=True),
        sa.Column("finished", sa.String(), nullable=True),
        sa.Column("why", sa.String(), nullable=True),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("token", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    for name in _INDEXED:
        op.create_index(op.f(f"ix_submission_{name}"), "submission", [name], unique=False)
    op.create_table(
        "lease",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("until", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def downgrade() -> None:
    """Drop both."""
    op.drop_table("lease")
    for name in _INDEXED:
        op.drop_index(op.f(f"ix_submission_{name}"), table_name="submission")
    op.drop_table("submission")
