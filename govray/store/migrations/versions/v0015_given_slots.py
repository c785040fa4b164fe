"""What elastic entries of the queue can give back, and have."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

_COLUMNS = ("least", "held", "cap")
_TEXTS = ("capped", "gives_to")


def upgrade() -> None:
    """Add the columns. Entries that are there give nothing back."""
    with op.batch_alter_table("submission") as table:
        for name in _COLUMNS:
            table.add_column(sa.Column(name, sa.Integer(), nullable=True))
        for name in _TEXTS:
            table.add_column(sa.Column(name, sa.String(), nullable=True))
        table.add_column(
            sa.Column("cap_number", sa.Integer(), nullable=False, server_default=sa.text("0"))
        )


def downgrade() -> None:
    """Drop them."""
    with op.batch_alter_table("submission") as table:
        for name in (*_COLUMNS, *_TEXTS, "cap_number"):
            table.drop_column(name)
