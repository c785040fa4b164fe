"""Pages of projects: what there is, roles and settings, and forms that change them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import ColumnElement, and_, or_, select
from sqlmodel import col

from govray.governance.submission.yaml_overrides import read_mapping, written
from govray.platform.service.acting import project_rules
from govray.platform.service.acting.project_rules import demand_manage, find_project
from govray.platform.service.http.edits import etag
from govray.platform.service.identity.pagination import PageDep
from govray.platform.service.identity.roles import may, places, role_in
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.pages.form_fields import FormDep, checked, deleting, field, then
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes import deletions
from govray.platform.service.routes import projects as routes
from govray.platform.service.routes import role_bindings as role_routes
from govray.platform.service.routes.role_bindings import NewBinding
from govray.platform.service.visible import visible_runs
from govray.platform.service.visible.readers import RUN_READERS, SIGNED_IN, administers
from govray.platform.store import tenancy
from govray.platform.store.project_settings import parse_settings
from govray.platform.store.role_bindings import ROLES
from govray.platform.store.tables import (
    Experiment,
    Project,
    ProjectDeletion,
    QueueEntry,
    RoleBinding,
    Workspace,
)
from govray.platform.store.usage import month_of, usage

MOST_ROLES = 200

Name = Annotated[str, Path(max_length=63)]

router = APIRouter(dependencies=[SIGNED_IN])


@router.get("/projects")
def listing(visit: VisitDep, page: PageDep) -> HTMLResponse:
    statement = select(Project).where(
        project_rules.projects(visit.caller), visible_runs.in_a_project(Project.name)
    )
    rows, after = page.rows(visit.session, statement, [Project.name])
    return render(
        visit,
        "projects.html",
        projects=[(row, sorted(role_in(visit.caller, row, at=visit.at))) for row in rows],
        after=after,
        workspaces=_managed(visit),
        organisation=administers(visit.caller),
    )


def _managed(visit: Visit) -> list[str]:
    """The workspaces where the caller may make projects."""
    w = Workspace
    found = select(col(w.name)).where(col(w.archived).is_(False)).order_by(col(w.name))
    if not administers(visit.caller):
        if not visit.caller.has("admin"):
            return []
        found = found.where(col(w.name).in_(sorted(places(visit.caller, "manage")["workspace"])))
    return list(visit.session.execute(found.limit(tenancy.MOST)).scalars())


@router.post("/projects")
def make(visit: VisitDep, fields: FormDep) -> Response:
    names = ("name", "workspace", "description")
    new = checked(routes.NewProject, {name: fields.get(name, "") for name in names})
    routes.make_project(visit, new)
    return then(f"/projects/{new.name}")


@router.post("/workspaces")
def make_workspace(visit: VisitDep, fields: FormDep) -> Response:
    new = checked(routes.NewWorkspace, {"name": field(fields, "name")})
    routes.make_workspace(visit, new)
    return then("/projects")


@router.get("/projects/{project}")
def of_project(
    visit: VisitDep, project: Name, ask: Annotated[str, Query(max_length=16)] = ""
) -> HTMLResponse:
    row = find_project(visit.session, visit.caller, project)
    b = RoleBinding
    order = (col(b.scope), col(b.subject_kind), col(b.subject), col(b.role))
    around = select(b).where(_around(row)).order_by(*order)
    roles = visit.session.scalars(around.limit(MOST_ROLES + 1)).all()
    return render(
        visit,
        "project.html",
        project=row,
        space=deletions.space_of(visit, row.name),
        budget=_budget(visit, row),
        own=sorted(role_in(visit.caller, row, at=visit.at)),
        roles=roles[:MOST_ROLES],
        more=len(roles) > MOST_ROLES,
        at=visit.at,
        manages=may(visit.caller, "manage", row, at=visit.at),
        bindable=[each for each in ROLES if each != "supplier"],
        settings=written(row.settings) if row.settings else "",
        shown=etag(row.settings),
        deletion=_mark(visit, row),
        asked=ask,
    )


def _budget(visit: Visit, row: Project) -> tuple[float, float] | None:
    """The accelerator-hours that this month has used, and those that it may; None: no budget."""
    most = parse_settings(row.settings, where="settings").monthly_accelerator_hours
    if most is None:
        return None
    found = usage(
        visit.session,
        at=visit.at,
        since=month_of(visit.at),
        experiments=col(Experiment.project) == row.name,
        entries=col(QueueEntry.project) == row.name,
    )
    return sum(each.accelerator_hours for each in found), most


def _mark(visit: Visit, row: Project) -> dict[str, Any] | None:
    """The mark of a project, as a run's."""
    mark = visit.session.get(ProjectDeletion, row.name)
    if mark is None:
        return None
    return {**mark.model_dump(), "attested": False, "restored": None, "begun": None}


def _around(row: Project) -> ColumnElement[bool]:
    """Condition on `RoleBinding`: roles that count in a project."""
    b = RoleBinding
    return or_(
        and_(col(b.scope) == "project", col(b.place) == row.name),
        and_(col(b.scope) == "workspace", col(b.place) == row.workspace),
        and_(col(b.scope) == "organisation", col(b.role) != "supplier"),
    )


@router.post("/projects/{project}/settings")
def set_settings(visit: VisitDep, project: Name, fields: FormDep) -> Response:
    text = fields.get("settings", "")
    routes.set_settings(visit, project, read_mapping(text, name="settings") if text else {})
    return then(f"/projects/{project}")


@router.post("/projects/{project}/archive")
def archive(visit: VisitDep, project: Name, fields: FormDep) -> Response:
    change = routes.PlaceChange(archived=field(fields, "archived") == "yes")
    routes.change_project(visit, project, change)
    return then(f"/projects/{project}")


def named(project: Name) -> str:
    return project


deleting(
    router,
    "/projects/{project}",
    named,
    deletions.delete_project,
    deletions.restore_project,
    guard=RUN_READERS,
)


@router.post("/projects/{project}/roles")
def bind(visit: VisitDep, project: Name, fields: FormDep) -> Response:
    kind, until = field(fields, "kind"), fields.get("until", "")
    asked = {
        "group" if kind == "group" else "user": field(fields, "subject"),
        "role": field(fields, "role"),
        "scope": "project",
        "place": project,
        "until": f"{until}T00:00:00Z" if until else None,
    }
    new = checked(NewBinding, asked)
    role_routes.bind(visit, new)
    return then(f"/projects/{project}")


@router.post("/projects/{project}/roles/remove")
def unbind(visit: VisitDep, project: Name, fields: FormDep) -> Response:
    demand_manage(visit.session, visit.caller, "project", project, at=visit.at)
    role_routes.unbind(visit, field(fields, "binding"))
    return then(f"/projects/{project}")
