"""What a caller may do with a workspace, a project and what is submitted to it.

What a caller may not see is absent: the same 404, whether or not it is there. What it sees and may
not change is a 403.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from sqlalchemy import ColumnElement, select
from sqlmodel import Session, col

from govray.errors import Refused
from govray.platform.service.http.problems import not_allowed
from govray.platform.service.identity import rights
from govray.platform.service.identity.caller import Caller, Reach
from govray.platform.service.identity.rights import RIGHTS, Action, Place, may
from govray.platform.service.visible.lookup import Finder
from govray.platform.store import pools
from govray.platform.store.project_settings import (
    ProjectSettings,
    TaskKind,
    parse_settings,
    resolve_task,
)
from govray.platform.store.tables import ProjectRow, WorkspaceRow
from govray.platform.store.tenancy import NAME

PlaceName = Annotated[str, Path(pattern=f"^{NAME}$", description="Its name.", examples=["vision"])]


def workspaces(caller: Caller) -> ColumnElement[bool]:
    """Condition on `WorkspaceRow`: those that the caller may see: with a role there, or within."""
    inside = select(col(ProjectRow.workspace)).where(rights.projects(caller))
    return rights.workspaces(caller) | col(WorkspaceRow.name).in_(inside)


find_project = Finder("project", ProjectRow, "name", rights.projects, "See the list of projects")
find_workspace = Finder("workspace", WorkspaceRow, "name", workspaces, "See the list of workspaces")


def demand(session: Session, caller: Caller, action: Action, project: str) -> ProjectRow:
    """The project, if the caller may do ``action`` there. Raises 404: it sees no such project;
    403: it sees it and may not."""
    row = find_project(session, caller, project)
    _check_may(caller, action, row, f"the project {project}")
    return row


def demand_manage(session: Session, caller: Caller, reach: Reach, place: str) -> str | None:
    """Until when the caller is an admin of a place; None: without an end. Raises as `demand`."""
    row: Place = None
    if reach == "project":
        row = find_project(session, caller, place)
    elif reach == "workspace":
        row = find_workspace(session, caller, place)
    _check_may(caller, "manage", row, f"the {reach} {place}".strip())
    return rights.admin_until(caller, row)


def check_lent(own: str | None, until: str | None, what: str) -> None:
    """Return if what a caller gives ends no later than ``own``, when it ceases to be an admin.
    ``until``: when what is given ends; None: never."""
    if own is not None and (until is None or until > own):
        raise Refused(
            f"your own role ends at {own}, and {what} would last longer",
            do="Ask an admin whose role lasts, or give an earlier end",
        )


def settings_of(row: ProjectRow) -> ProjectSettings:
    return parse_settings(row.settings, where=f"project {row.name}")


def submitting(
    session: Session, caller: Caller, project: str
) -> tuple[ProjectRow | None, ProjectSettings]:
    """The project that the caller may submit to, and its settings.

    Nobody uses projects as long as ``default`` is the only one, and has no settings. Until
    then, who may submit in the whole organisation may name any.

    Raises:
        Problem: 404, the caller sees no such project; 403, it may not submit.
    """
    if may(caller, "submit", None):
        rows = session.execute(select(ProjectRow).limit(2)).scalars().all()
        if len(rows) == 1 and not rows[0].settings and project != rows[0].name:
            return None, ProjectSettings()
    row = demand(session, caller, "submit", project)
    return row, settings_of(row)


def search_room(session: Session, settings: ProjectSettings, pool: str | None) -> int | None:
    """Slots that a search of a project takes which does not say how many. That is half of its
    pool's, within the project's limits. None: nobody knows the pool's size."""
    found = pools.search_room(session, settings.default_pool if pool is None else pool)
    limits = (found, settings.max_slots, settings.max_slots_per_experiment)
    return None if found is None else min(each for each in limits if each is not None)


def check_startable(
    session: Session, pool: str, project: str, slots: int, *, brings_folder: bool
) -> None:
    """Return unless it could never start in the pools of the queue."""
    why = pools.never_here(session, pool, project, slots, brings_folder=brings_folder)
    if why is not None:
        raise Refused(
            why,
            where=f"pool {pool}",
            do="Look at /v1/pools; --working-dir sends a folder",
        )


def check_task(
    session: Session,
    project: str,
    caller: Caller,
    *,
    kind: TaskKind,
    slots: int,
    pool: str | None,
    priority: int | None,
) -> tuple[str, int]:
    """The pool and priority of a task that is submitted to ``project``."""
    row, settings = submitting(session, caller, project)
    check_not_archived(row)
    pool, priority = resolve_task(
        settings, kind=kind, slots=slots, pool=pool, priority=priority, project=project
    )
    check_startable(session, pool, project, slots, brings_folder=True)  # a task needs none
    return pool, priority


def check_not_archived(row: ProjectRow | None) -> None:
    """Return if what is put into the queue may run in the project ``row``."""
    if row is not None and row.archived:
        raise Refused(
            "the project is archived",
            where=f"project {row.name}",
            do="Ask an admin of the project to take it out of the archive",
        )


def _check_may(caller: Caller, action: Action, place: Place, where: str) -> None:
    scope = RIGHTS[action].scope
    if not caller.has(scope):
        raise not_allowed(f"The token has not the scope {scope}", "Make one with that scope")
    if not may(caller, action, place):
        raise not_allowed(
            f"No role of yours allows {action} in {where}",
            "Ask an admin of it for a role; docs/service.md has the table",
        )
