"""Workspaces and projects: what there is that the caller sees, and changing it.

An admin of the organisation makes workspaces, and one of a workspace makes projects there. A
project's admin describes it and sets its config policy.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlmodel import col

from govray.errors import UsageError
from govray.platform.service.acting import project_rules
from govray.platform.service.acting.project_rules import (
    PlaceName,
    demand,
    demand_manage,
    find_project,
    find_workspace,
)
from govray.platform.service.http.answer import Answer, Body
from govray.platform.service.http.edits import ETAG, IF_MATCH, check_unchanged, tell
from govray.platform.service.http.problems import refused, unprocessable
from govray.platform.service.http.session import SessionDep
from govray.platform.service.http.statuses import refusing
from govray.platform.service.identity import rights
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.pagination import Listing, PageDep, filtered
from govray.platform.service.identity.repeats import OnceDep
from govray.platform.service.identity.rights import everywhere, roles_in
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.visible import visible_runs
from govray.platform.store import tables, tenancy
from govray.platform.store.database import begin_writing
from govray.platform.store.project_settings import ProjectSettings, parse_settings

router = APIRouter(tags=["projects"], dependencies=[needs("account")])

Name = Annotated[str, Field(pattern=f"^{tenancy.NAME}$", examples=["vision"])]
Description = Annotated[str, Field(max_length=tenancy.LONGEST_DESCRIPTION)]


class Workspace(Answer):
    """A part of the organisation."""

    name: str
    description: str
    archived: bool = Field(description="It takes no projects any more.")
    created: str
    user: str = Field(description="Who made it.")


class Project(Workspace):
    """A project, and the roles that you have in it."""

    workspace: str
    roles: list[str]


class NewWorkspace(Body):
    """A workspace to make."""

    name: Name
    description: Description = ""


class NewProject(NewWorkspace):
    """A project to make."""

    workspace: Name


class PlaceChange(Body):
    """What is to be changed. What is absent stays."""

    description: Description | None = None
    archived: bool | None = None


class ConfigPolicy(BaseModel):
    """A project's config policy: limits, defaults and fixed values. `{}` allows everything."""

    settings: ProjectSettings


@router.get("/workspaces")
def workspaces(visit: VisitDep, page: PageDep) -> Listing[Workspace]:
    """The workspaces that you see, by name."""
    row = tables.WorkspaceRow
    statement = select(row).where(project_rules.workspaces(visit.caller))
    return page.listing(visit.session, statement, (row.name,), Workspace.model_validate)


@router.post("/workspaces", status_code=201)
def make_workspace(visit: OnceDep, new: NewWorkspace) -> Workspace:
    """Make a workspace. For admins of the organisation."""
    demand_manage(visit.session, visit.caller, "organisation", "")
    begin_writing(visit.session)
    row = tenancy.make_workspace(visit.session, new.name, description=new.description, by=visit.by)
    visit.session.commit()
    return Workspace.model_validate(row)


@router.get("/workspaces/{workspace}")
def workspace(visit: VisitDep, workspace: PlaceName) -> Workspace:
    """One workspace."""
    return Workspace.model_validate(find_workspace(visit.session, visit.caller, workspace))


@router.patch("/workspaces/{workspace}", responses=refusing(409))
def change_workspace(visit: VisitDep, workspace: PlaceName, change: PlaceChange) -> Workspace:
    """Describe, archive or bring back a workspace. For its admins."""
    demand_manage(visit.session, visit.caller, "workspace", workspace)
    begin_writing(visit.session)
    row = tenancy.change_workspace(
        visit.session,
        find_workspace(visit.session, visit.caller, workspace),
        **change.model_dump(),
        by=visit.by,
    )
    visit.session.commit()
    return Workspace.model_validate(row)


@router.get("/projects")
def projects(
    visit: VisitDep,
    page: PageDep,
    workspace: Annotated[
        str | None, Query(max_length=63, description="Of this workspace only.")
    ] = None,
) -> Listing[Project]:
    """The projects that you see, by name."""
    row = tables.ProjectRow
    statement = select(row).where(
        rights.projects(visit.caller), visible_runs.in_a_project(row.name)
    )
    statement = filtered(statement, (row.workspace, workspace))
    return page.listing(visit.session, statement, (row.name,), lambda each: _project(visit, each))


@router.post("/projects", status_code=201, responses=refusing(404))
def make_project(visit: OnceDep, new: NewProject) -> Project:
    """Make a project in a workspace. For admins of that.

    Experiments of this name that nobody's project had become its own. So only an admin of the
    organisation makes a project whose name experiments have.
    """
    demand_manage(visit.session, visit.caller, "workspace", new.workspace)
    begin_writing(visit.session)
    if not everywhere(visit.caller, "manage") and _is_used(visit.session, new.name):
        raise refused(
            "The name cannot be taken",
            "Take another name, or ask an admin of the organisation to make it",
        )
    row = tenancy.make_project(
        visit.session,
        new.name,
        workspace=new.workspace,
        description=new.description,
        by=visit.by,
    )
    visit.session.commit()
    return _project(visit, row)


@router.get("/projects/{project}")
def project(visit: VisitDep, project: PlaceName) -> Project:
    """One project."""
    return _project(visit, find_project(visit.session, visit.caller, project))


@router.patch("/projects/{project}", responses=refusing(409))
def change_project(visit: VisitDep, project: PlaceName, change: PlaceChange) -> Project:
    """Describe, archive or bring back a project. For its admins."""
    row = demand(visit.session, visit.caller, "manage", project)
    begin_writing(visit.session)
    tenancy.change_project(visit.session, row, **change.model_dump(), by=visit.by)
    visit.session.commit()
    return _project(visit, row)


@router.get("/projects/{project}/settings", responses=ETAG)
def settings(visit: VisitDep, project: PlaceName, response: Response) -> ConfigPolicy:
    """What may be submitted to a project, and what is the default there."""
    row = find_project(visit.session, visit.caller, project)
    tell(response, row.settings)
    return ConfigPolicy(settings=project_rules.settings_of(row))


@router.put("/projects/{project}/settings", dependencies=[IF_MATCH])
def set_settings(visit: VisitDep, project: PlaceName, new: dict[str, Any]) -> ConfigPolicy:
    """Replace a project's config policy. For its admins.

    The body is the policy itself, as `settings` of the answer has it. Experiments that wait already
    keep what they were accepted with.
    """
    row = demand(visit.session, visit.caller, "manage", project)
    try:
        parsed = parse_settings(new, where="body")
    except UsageError as error:
        raise unprocessable(f"body: {error.what}", error.do) from None
    begin_writing(visit.session)
    visit.session.refresh(row)
    check_unchanged(visit.request, row.settings)
    tenancy.change_project(visit.session, row, settings=parsed.stored(), by=visit.by)
    visit.session.commit()
    return ConfigPolicy(settings=parsed)


def _project(visit: Visit, row: tables.ProjectRow) -> Project:
    roles = sorted(roles_in(visit.caller, row))
    fields = {name: getattr(row, name) for name in Project.model_fields if name != "roles"}
    return Project(**fields, roles=roles)


def _is_used(session: SessionDep, project: str) -> bool:
    e, s = tables.ExperimentRow, tables.QueueEntry
    queries = (
        select(col(e.id)).where(col(e.project) == project),
        select(col(s.id)).where(col(s.project) == project),
    )
    return any(session.execute(each.limit(1)).first() is not None for each in queries)
