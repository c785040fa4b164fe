"""Tickets: who may see a notebook, shell or TensorBoard, and until when."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_INDEXED = ("task", "expires")


def upgrade() -> None:
    """Make the table, empty."""
    op.create_table(
        "task_ticket",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=True),
        sa.Column("use", sa.String(), nullable=False),
        sa.Column("expires", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    for name in _INDEXED:
        op.create_index(op.f(f"ix_task_ticket_{name}"), "task_ticket", [name], unique=False)


def downgrade() -> None:
    """Drop it."""
    for name in _INDEXED:
        op.drop_index(op.f(f"ix_task_ticket_{name}"), table_name="task_ticket")
    op.drop_table("task_ticket")
