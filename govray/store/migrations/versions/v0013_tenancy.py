"""Workspaces, projects, groups, roles bound to them, and templates.

There are a workspace and a project ``default``, as experiments without a project have had it.
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Make the tables, empty but for the defaults."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    workspace = op.create_table(
        "workspace",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("created", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    project = op.create_table(
        "project",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("workspace", sa.String(), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("created", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["workspace"], ["workspace.name"]),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_index(op.f("ix_project_workspace"), "project", ["workspace"], unique=False)
    made = {"name": "default", "description": "", "archived": False, "created": now, "user": ""}
    op.bulk_insert(workspace, [made])
    op.bulk_insert(project, [{**made, "workspace": "default", "settings": {}}])
    op.create_table(
        "groupmember",
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("group", "user"),
    )
    op.create_index(op.f("ix_groupmember_user"), "groupmember", ["user"], unique=False)
    op.create_table(
        "rolebinding",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("subject_kind", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("place", sa.String(), nullable=False),
        sa.Column("supplier", sa.String(), nullable=True),
        sa.Column("until", sa.String(), nullable=True),
        sa.Column("made", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    for name in ("subject", "place"):
        op.create_index(op.f(f"ix_rolebinding_{name}"), "rolebinding", [name], unique=False)
    op.create_table(
        "template",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("changed", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["project.name"]),
        sa.PrimaryKeyConstraint("project", "name"),
    )


def downgrade() -> None:
    """Drop them, those that refer to others first."""
    op.drop_table("template")
    for name in ("place", "subject"):
        op.drop_index(op.f(f"ix_rolebinding_{name}"), table_name="rolebinding")
    op.drop_table("rolebinding")
    op.drop_index(op.f("ix_groupmember_user"), table_name="groupmember")
    op.drop_table("groupmember")
    op.drop_index(op.f("ix_project_workspace"), table_name="project")
    op.drop_table("project")
    op.drop_table("workspace")
