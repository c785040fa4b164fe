"""By which request an entry of the queue was made: the same request again makes no second one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add both columns, empty."""
    with op.batch_alter_table("submission") as batch:
        batch.add_column(sa.Column("request_key", sa.String(), nullable=True))
        batch.add_column(sa.Column("request_body", sa.String(), nullable=True))
        batch.create_unique_constraint("uq_submission_request_key", ["request_key"])


def downgrade() -> None:
    """Drop both."""
    with op.batch_alter_table("submission") as batch:
        batch.drop_constraint("uq_submission_request_key", type_="unique")
        batch.drop_column("request_body")
        batch.drop_column("request_key")
