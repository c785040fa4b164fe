"""Webhooks, what they are told, and what verifying registered models again gave."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Make the four tables, empty."""
    op.create_table(
        "webhook",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("kinds", sa.JSON(), nullable=False),
        sa.Column("project", sa.String(), nullable=True),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("created", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "alert",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("mark", sa.String(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("noticed", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("alert_by_cause", "alert", ["kind", "subject", "mark"], unique=True)
    op.create_index(op.f("ix_alert_at"), "alert", ["at"], unique=False)
    op.create_table(
        "delivery",
        sa.Column("webhook", sa.String(), nullable=False),
        sa.Column("alert", sa.String(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=True),
        sa.Column("until", sa.String(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("why", sa.String(), nullable=True),
        sa.Column("delivered", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["alert"], ["alert.id"]),
        sa.ForeignKeyConstraint(["webhook"], ["webhook.id"]),
        sa.PrimaryKeyConstraint("webhook", "alert"),
    )
    op.create_index("delivery_by_turn", "delivery", ["state", "due"], unique=False)
    op.create_table(
        "reverification",
        sa.Column("attestation", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("why", sa.String(), nullable=True),
        sa.Column("since", sa.String(), nullable=False),
        sa.Column("checked", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("attestation", "number"),
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("reverification")
    op.drop_index("delivery_by_turn", table_name="delivery")
    op.drop_table("delivery")
    op.drop_index(op.f("ix_alert_at"), table_name="alert")
    op.drop_index("alert_by_cause", table_name="alert")
    op.drop_table("alert")
    op.drop_table("webhook")
