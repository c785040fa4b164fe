"""What a caller may do with a workspace, a project and what is submitted to it.

What a caller may not see is absent: the same 404, whether or not it is there. What it sees and may
not change is a 403.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from sqlalchemy import ColumnElement, false, or_, select, true
from sqlmodel import Session, col

from govray.errors import Refused
from govray.platform.service.http.problems import Problem
from govray.platform.service.identity.caller import Caller, Reach
from govray.platform.service.identity.roles import NEEDS, Action, may, places
from govray.platform.service.visible.lookup import Finder
from govray.platform.service.visible.reach import everywhere, in_projects, is_staff
from govray.platform.store import pools
from govray.platform.store.project_settings import (
    ProjectSettings,
    TaskKind,
    parse_settings,
    resolve_task,
)
from govray.platform.store.tables import Project, Workspace
from govray.platform.store.tenancy import NAME

PlaceName = Annotated[str, Path(pattern=f"^{NAME}$", description="Its name.", examples=["vision"])]


def projects(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Project`: those that the caller may see."""
    return in_projects(caller, Project.name)


def workspaces(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Workspace`: those that the caller may see: with a role there, or within."""
    if is_staff(caller):
        return true()
    found = places(caller, "view")
    if found["organisation"]:
        return true()
    w, p = Workspace, Project
    inside = select(col(p.workspace)).where(projects(caller))
    own = col(w.name).in_(sorted(found["workspace"])) if found["workspace"] else false()
    return or_(own, col(w.name).in_(inside))


find_project = Finder("project", Project, "name", projects, "See the list of projects")
find_workspace = Finder("workspace", Workspace, "name", workspaces, "See the list of workspaces")


def demand(session: Session, caller: Caller, action: Action, project: str, *, at: str) -> Project:
    """The project, if the caller may do ``action`` there. Raises 404: it sees no such project;
    403: it sees it and may not."""
    row = find_project(session, caller, project)
    if not may(caller, action, row, at=at):
        raise _not_allowed(caller, action, f"the project {project}")
    return row


def demand_manage(
    session: Session, caller: Caller, reach: Reach, place: str, *, at: str
) -> str | None:
    """Until when the caller is an admin of a place; None: without an end. Nobody gives a role that
    lasts longer than that. Models and cases are the organisation's."""
    row: Project | None = None
    reaches: list[tuple[str, str]] = [("organisation", "")]
    if reach == "project":
        row = find_project(session, caller, place)
        reaches += [("workspace", row.workspace), ("project", row.name)]
    elif reach == "workspace":
        reaches.append(("workspace", find_workspace(session, caller, place).name))
    ends = [
        each.until
        for each in caller.bound
        if each.role == "admin"
        and (each.reach, each.place) in reaches
        and (each.until is None or each.until > at)
    ]
    if caller.role == "admin":
        ends.append(caller.role_until)
    if not ends or not caller.has(NEEDS["manage"]):
        raise _not_allowed(caller, "manage", f"the {reach} {place}".strip())
    return None if None in ends else max(each for each in ends if each is not None)


def check_lent(caller: Caller, until: str | None, what: str) -> None:
    """Return if what the caller gives ends no later than its own role in the organisation.
    ``until``: when what is given ends; None: never."""
    own = caller.role_until
    if own is not None and (until is None or until > own):
        raise Refused(
            f"your own role ends at {own}, and {what} would last longer",
            do="Ask an admin whose role lasts, or give an earlier end",
        )


def settings_of(row: Project) -> ProjectSettings:
    return parse_settings(row.settings, where=f"project {row.name}")


def submitting(
    session: Session, caller: Caller, project: str, *, at: str
) -> tuple[Project | None, ProjectSettings]:
    """The project that the caller may submit to, and its settings.

    Nobody uses projects as long as ``default`` is the only one, and has no settings. Until
    then, who may submit in the whole organisation may name any.

    Raises:
        Problem: 404, the caller sees no such project; 403, it may not submit.
    """
    if everywhere(caller, "submit") and caller.has(NEEDS["submit"]):
        rows = session.execute(select(Project).limit(2)).scalars().all()
        if len(rows) == 1 and not rows[0].settings and project != rows[0].name:
            return None, ProjectSettings()
    row = demand(session, caller, "submit", project, at=at)
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
    at: str,
) -> tuple[str, int]:
    """The pool and priority of a task that is submitted to ``project``."""
    row, settings = submitting(session, caller, project, at=at)
    check_not_archived(row)
    pool, priority = resolve_task(
        settings, kind=kind, slots=slots, pool=pool, priority=priority, project=project
    )
    check_startable(session, pool, project, slots, brings_folder=True)  # a task needs none
    return pool, priority


def check_not_archived(row: Project | None) -> None:
    """Return if what is put into the queue may run in the project ``row``."""
    if row is not None and row.archived:
        raise Refused(
            "the project is archived",
            where=f"project {row.name}",
            do="Ask an admin of the project to take it out of the archive",
        )


def _not_allowed(caller: Caller, action: Action, where: str) -> Problem:
    scope = NEEDS[action]
    if not caller.has(scope):
        return Problem(
            403, "Not allowed", f"The token has not the scope {scope}", "Make one with that scope"
        )
    return Problem(
        403,
        "Not allowed",
        f"No role of yours allows {action} in {where}",
        "Ask an admin of it for a role; docs/service.md has the table",
    )
