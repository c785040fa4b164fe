"""Who is signed in in a browser, and who is about to be at an identity provider."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Make both tables, empty."""
    op.create_table(
        "browsersession",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("secret_sha256", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("supplier", sa.String(), nullable=True),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("groups", sa.JSON(), nullable=False),
        sa.Column("token", sa.String(), nullable=True),
        sa.Column("created", sa.String(), nullable=False),
        sa.Column("used", sa.String(), nullable=False),
        sa.Column("expires", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["token"], ["token.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_browsersession_user"), "browsersession", ["user"])
    op.create_index(op.f("ix_browsersession_expires"), "browsersession", ["expires"])
    op.create_table(
        "signinattempt",
        sa.Column("secret_sha256", sa.String(), nullable=False),
        sa.Column("following", sa.String(), nullable=False),
        sa.Column("expires", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("secret_sha256"),
    )
    op.create_index(op.f("ix_signinattempt_expires"), "signinattempt", ["expires"])


def downgrade() -> None:
    """Drop both: everybody has to sign in again."""
    op.drop_table("signinattempt")
    op.drop_table("browsersession")
