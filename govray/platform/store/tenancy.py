"""Workspaces and projects: organisation → workspace → project. The organisation is the store.

A workspace holds projects. A project holds what experiments and tasks name by it. A name is
taken once in the whole store, so that a run's project says its workspace. What is no longer used is
archived, and takes no experiments. A deleted project's row stays, and with it its name
(`govray.platform.store.deletions`).

The project ``default`` in the workspace ``default`` is there from the start. A project that no row
names, such as one that `govray store index --project` made up, belongs to no workspace.

Functions take a session and never commit. Times are arguments. Each change has its entry in the
audit log, in the same transaction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlmodel import Session, col, select

from govray.errors import Refused, UsageError
from govray.platform.store.audit_log import ChangedBy, log
from govray.platform.store.project_settings import ProjectSettings, parse_settings
from govray.platform.store.tables import ProjectRow, WorkspaceRow

DEFAULT = "default"
"""The workspace and the project of what names none."""
LONGEST_DESCRIPTION = 1000
MOST = 1000
"""Workspaces, and projects, of a store."""

NAME = "[a-z0-9][a-z0-9._-]{0,62}"
"""A workspace's, a project's or a group's name; part of addresses, so bounded."""
_NAME = re.compile(NAME)


def check_name(name: str, what: str) -> str:
    """``name``, if a workspace, project or group may have it."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is no name for a {what}",
            where="name",
            do="Use lower-case letters, digits and . _ - behind a letter or digit, at most 63",
        )
    return name


def check_description(text: str) -> str:
    """``text``, if it is one line that is not too long."""
    if len(text) > LONGEST_DESCRIPTION or not text.isprintable():
        raise UsageError(f"not a line of {LONGEST_DESCRIPTION} characters", where="description")
    return text


def make_workspace(
    session: Session, name: str, *, description: str = "", by: ChangedBy
) -> WorkspaceRow:
    check_name(name, "workspace")
    if session.get(WorkspaceRow, name) is not None:
        raise Refused("there is a workspace of this name", where=name)
    _check_room(session, WorkspaceRow, "workspaces")
    row = WorkspaceRow(
        name=name, description=check_description(description), created=by.at, user=by.user
    )
    session.add(row)
    log(session, by, "workspace.make", f"workspace {name}", {})
    return row


def make_project(
    session: Session, name: str, *, workspace: str, description: str = "", by: ChangedBy
) -> ProjectRow:
    """A new project without settings.

    Experiments that named it before have been nobody's; from now on they are its own.

    Raises:
        Refused: There is one of this name, or the workspace is archived.
    """
    check_name(name, "project")
    if get_workspace(session, workspace).archived:
        raise Refused("the workspace is archived", where=workspace)
    if (known := session.get(ProjectRow, name)) is not None:
        raise Refused(
            f"a project of this name was deleted on {known.deleted}"
            if known.deleted
            else "there is a project of this name",
            where=name,
            do="Take another name: one stays taken, for lineages name its runs",
        )
    _check_room(session, ProjectRow, "projects")
    row = ProjectRow(
        name=name,
        workspace=workspace,
        description=check_description(description),
        settings={},
        created=by.at,
        user=by.user,
    )
    session.add(row)
    log(session, by, "project.make", f"project {name}", {"workspace": workspace})
    return row


def get_workspace(session: Session, name: str) -> WorkspaceRow:
    row = session.get(WorkspaceRow, name)
    if row is None:
        raise UsageError(
            "there is no such workspace", where=name[:80], do="See govray workspace ls"
        )
    return row


def get_project(session: Session, name: str) -> ProjectRow:
    row = session.get(ProjectRow, name)
    if row is None:
        raise UsageError("there is no such project", where=name[:80], do="See govray project ls")
    return row


def change_workspace(
    session: Session,
    row: WorkspaceRow,
    *,
    description: str | None = None,
    archived: bool | None = None,
    by: ChangedBy,
) -> WorkspaceRow:
    """Describe, archive or bring back a workspace. What is None stays. Raises `Refused`: it is the
    default's, or has projects that are not archived."""
    if archived and not row.archived:
        _not_default(row.name, "workspace")
        used = select(ProjectRow.name).where(
            ProjectRow.workspace == row.name, col(ProjectRow.archived).is_(False)
        )
        if (first := session.exec(used.limit(1)).first()) is not None:
            raise Refused(
                f"the project {first} in it is in use",
                where=f"workspace {row.name}",
                do="Archive its projects first",
            )
    changed = _change(row, description, archived)
    log(session, by, "workspace.change", f"workspace {row.name}", changed)
    return row


def change_project(
    session: Session,
    row: ProjectRow,
    *,
    description: str | None = None,
    archived: bool | None = None,
    settings: Mapping[str, Any] | None = None,
    by: ChangedBy,
) -> ProjectRow:
    """Describe, archive or bring back a project, or replace its settings. What is None stays.

    Args:
        settings: As `ProjectSettings.stored` gives them, which has checked them.

    Raises:
        Refused: It is the default project, is deleted, or its workspace is archived.
    """
    if row.deleted is not None:
        raise Refused(f"it was deleted on {row.deleted}", where=f"project {row.name}")
    if archived and not row.archived:
        _not_default(row.name, "project")
    if archived is False and session.get_one(WorkspaceRow, row.workspace).archived:
        raise Refused("its workspace is archived", where=f"project {row.name}")
    changed = _change(row, description, archived)
    if settings is not None and dict(settings) != row.settings:
        changed["settings"] = dict(settings)
        row.settings = dict(settings)
    log(session, by, "project.change", f"project {row.name}", changed)
    return row


def project_limits(session: Session) -> dict[str, tuple[float, int | None]]:
    """Project → its share beside others, and the slots that it holds at the same time, if limited.
    For whoever decides what starts next. A project without settings has the share 1."""
    found = settings_by_project(session)
    return {name: (each.share, each.max_slots) for name, each in found.items()}


def settings_by_project(session: Session) -> dict[str, ProjectSettings]:
    """The settings of every project, by name."""
    rows = session.exec(select(ProjectRow.name, ProjectRow.settings).order_by(col(ProjectRow.name)))
    return {name: parse_settings(stored, where=f"project {name}") for name, stored in rows}


def _change(
    row: WorkspaceRow | ProjectRow, description: str | None, archived: bool | None
) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    if description is not None:
        row.description = changed["description"] = check_description(description)
    if archived is not None:
        row.archived = changed["archived"] = archived
    return changed


def _not_default(name: str, what: str) -> None:
    if name == DEFAULT:
        raise Refused(
            f"the {what} {DEFAULT} takes what names no other, so it stays", where=f"{what} {name}"
        )


def _check_room(session: Session, table: type[WorkspaceRow] | type[ProjectRow], what: str) -> None:
    if len(session.exec(select(table.name).limit(MOST)).all()) >= MOST:
        raise Refused(f"there are {MOST} {what}, and no more are taken")
