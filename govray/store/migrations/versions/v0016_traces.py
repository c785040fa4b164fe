"""The span that a submission came in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add the column, empty: what was submitted before has no trace."""
    op.add_column("submission", sa.Column("trace", sa.String(), nullable=True))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("submission", "trace")
