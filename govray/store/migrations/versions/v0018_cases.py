"""Rights holders' cases: who asked whether a work was used, and what became of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

_INDEXED = ("state", "model", "received")


def upgrade() -> None:
    """Make the table, empty."""
    op.create_table(
        "rightscase",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("contact", sa.String(), nullable=False),
        sa.Column("requester", sa.String(), nullable=False),
        sa.Column("key_sha256", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("domains", sa.JSON(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=True),
        sa.Column("received", sa.String(), nullable=False),
        sa.Column("searched", sa.String(), nullable=True),
        sa.Column("found", sa.JSON(), nullable=False),
        sa.Column("answered", sa.String(), nullable=True),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("released", sa.JSON(), nullable=False),
        sa.Column("decision", sa.String(), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("decided", sa.String(), nullable=True),
        sa.Column("decided_by", sa.String(), nullable=True),
        sa.Column("links", sa.JSON(), nullable=False),
        sa.Column("closed", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    for name in _INDEXED:
        op.create_index(op.f(f"ix_rightscase_{name}"), "rightscase", [name], unique=False)


def downgrade() -> None:
    """Drop it, with the cases."""
    for name in _INDEXED:
        op.drop_index(op.f(f"ix_rightscase_{name}"), table_name="rightscase")
    op.drop_table("rightscase")
