"""Pages of projects: what there is, roles and settings, and forms that change them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import ColumnElement, and_, or_, select
from sqlmodel import col

from govray.governance.submission.yaml_overrides import read_mapping, written
from govray.platform.service.acting import project_rules
from govray.platform.service.acting.project_rules import (
    NowDep,
    changed_by,
    demand,
    demand_manage,
    find_project,
)
from govray.platform.service.http.checked_fields import checked
from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.access import CallerDep, require
from govray.platform.service.identity.caller import Caller
from govray.platform.service.identity.pagination import PageDep
from govray.platform.service.identity.roles import may, places, role_in
from govray.platform.service.pages.form_fields import FormDep, field, then
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes import projects as routes
from govray.platform.service.routes.role_bindings import NewBinding, given, taken
from govray.platform.service.visible.visibility import administers
from govray.platform.store import tenancy
from govray.platform.store.database import begin_writing
from govray.platform.store.project_settings import parse_settings
from govray.platform.store.role_bindings import ROLES
from govray.platform.store.tables import Project, RoleBinding, Workspace

SIGNED_IN = Depends(require("admin", "engineer", "auditor", "supplier", "member"))
MOST_ROLES = 200

Name = Annotated[str, Path(max_length=63)]
_COLUMN: Any = Project.name

router = APIRouter(dependencies=[SIGNED_IN])


@router.get("/projects")
def listing(
    request: Request, caller: CallerDep, session: SessionDep, page: PageDep, at: NowDep
) -> HTMLResponse:
    statement = select(Project).where(project_rules.projects(caller))
    rows, after = page.rows(session, statement, [_COLUMN], [str])
    return render(
        request,
        caller,
        "projects.html",
        projects=[(row, sorted(role_in(caller, row, at=at))) for row in rows],
        after=after,
        workspaces=_managed(session, caller),
        organisation=administers(caller),
    )


def _managed(session: SessionDep, caller: Caller) -> list[str]:
    """The workspaces where the caller may make projects."""
    w = Workspace
    found = select(col(w.name)).where(col(w.archived).is_(False)).order_by(col(w.name))
    if not administers(caller):
        if not caller.has("admin"):
            return []
        found = found.where(col(w.name).in_(sorted(places(caller, "manage")["workspace"])))
    return list(session.execute(found.limit(tenancy.MOST)).scalars())


@router.post("/projects")
def make(fields: FormDep, caller: CallerDep, session: SessionDep, at: NowDep) -> Response:
    names = ("name", "workspace", "description")
    new = checked(routes.NewProject, {name: fields.get(name, "") for name in names})
    routes.make_project(new, session, caller, at)
    return then(f"/projects/{new.name}")


@router.post("/workspaces")
def make_workspace(fields: FormDep, caller: CallerDep, session: SessionDep, at: NowDep) -> Response:
    new = checked(routes.NewWorkspace, {"name": field(fields, "name")})
    routes.make_workspace(new, session, caller, at)
    return then("/projects")


@router.get("/projects/{project}")
def of_project(
    request: Request, project: Name, caller: CallerDep, session: SessionDep, at: NowDep
) -> HTMLResponse:
    row = find_project(session, caller, project)
    b = RoleBinding
    roles = (
        session.execute(
            select(b)
            .where(_around(row))
            .order_by(col(b.scope), col(b.subject_kind), col(b.subject), col(b.role))
            .limit(MOST_ROLES + 1)
        )
        .scalars()
        .all()
    )
    return render(
        request,
        caller,
        "project.html",
        project=row,
        own=sorted(role_in(caller, row, at=at)),
        roles=roles[:MOST_ROLES],
        more=len(roles) > MOST_ROLES,
        at=at,
        manages=may(caller, "manage", row, at=at),
        bindable=[each for each in ROLES if each != "supplier"],
        settings=written(row.settings) if row.settings else "",
    )


def _around(row: Project) -> ColumnElement[bool]:
    """Condition on `RoleBinding`: roles that count in a project."""
    b = RoleBinding
    return or_(
        and_(col(b.scope) == "project", col(b.place) == row.name),
        and_(col(b.scope) == "workspace", col(b.place) == row.workspace),
        and_(col(b.scope) == "organisation", col(b.role) != "supplier"),
    )


@router.post("/projects/{project}/settings")
def set_settings(
    project: Name, fields: FormDep, caller: CallerDep, session: SessionDep, at: NowDep
) -> Response:
    row = demand(session, caller, "manage", project, at=at)
    text = fields.get("settings", "")
    value = read_mapping(text, name="settings") if text else {}
    settings = parse_settings(value, where="settings")
    begin_writing(session)
    tenancy.change_project(session, row, settings=settings.stored(), by=changed_by(caller, at))
    session.commit()
    return then(f"/projects/{project}")


@router.post("/projects/{project}/archive")
def archive(
    project: Name, fields: FormDep, caller: CallerDep, session: SessionDep, at: NowDep
) -> Response:
    row = demand(session, caller, "manage", project, at=at)
    begin_writing(session)
    archived = field(fields, "archived") == "yes"
    tenancy.change_project(session, row, archived=archived, by=changed_by(caller, at))
    session.commit()
    return then(f"/projects/{project}")


@router.post("/projects/{project}/roles")
def bind(
    project: Name, fields: FormDep, caller: CallerDep, session: SessionDep, at: NowDep
) -> Response:
    kind, until = field(fields, "kind"), fields.get("until", "")
    asked = {
        "group" if kind == "group" else "user": field(fields, "subject"),
        "role": field(fields, "role"),
        "scope": "project",
        "place": project,
        "until": f"{until}T00:00:00Z" if until else None,
    }
    new = checked(NewBinding, asked)
    given(session, caller, new, at)
    session.commit()
    return then(f"/projects/{project}")


@router.post("/projects/{project}/roles/remove")
def unbind(
    project: Name, fields: FormDep, caller: CallerDep, session: SessionDep, at: NowDep
) -> Response:
    demand_manage(session, caller, "project", project, at=at)
    taken(session, caller, field(fields, "binding"), at)
    session.commit()
    return then(f"/projects/{project}")
