"""Users, and roles bound to the organisation, a workspace or a project.

Only an admin of a place gives roles there and takes them away, and nobody gives what lasts longer
than the own.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field
from sqlalchemy import ColumnElement, and_, or_, select, true
from sqlmodel import col

from govray.governance.formats.document import Timestamp
from govray.platform.service.acting import project_rules
from govray.platform.service.acting.project_rules import check_lent, demand_manage
from govray.platform.service.http.answer import Answer, Body
from govray.platform.service.http.edits import ETAG, IF_MATCH, check_unchanged, tell
from govray.platform.service.http.problems import not_found, unprocessable
from govray.platform.service.http.session import SessionDep
from govray.platform.service.http.statuses import refusing
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.caller import BoundRole, Caller, Reach
from govray.platform.service.identity.pagination import Listing, PageDep, filtered
from govray.platform.service.identity.repeats import OnceDep
from govray.platform.service.identity.rights import everywhere, projects
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.store import role_bindings, tables
from govray.platform.store.database import begin_writing
from govray.platform.store.role_bindings import Grant
from govray.platform.store.tables import RoleBinding

router = APIRouter(tags=["roles"], dependencies=[needs("account")])
ADMINS = needs("manage", whole=True)
WATCHERS = needs("audit", whole=True)

BindingId = Annotated[
    str,
    Path(pattern="^b-[0-9a-f]{24}$", description="The binding's id.", examples=["b-" + "0" * 24]),
]
UserPath = Annotated[str, Path(max_length=255, description="The user's name.", examples=["ada"])]


class Binding(Answer):
    """A role that somebody has in some place."""

    id: str
    subject_kind: Literal["user", "group"]
    subject: str
    role: str
    scope: Reach
    place: str = Field(
        description="The name of the workspace or project; empty for the organisation."
    )
    until: str | None = Field(default=None, description="When it ends by itself.")
    made: str
    user: str = Field(description="Who gave it.")


class NewBinding(Body):
    """A role to give, or to give another end."""

    user: Annotated[str, Field(max_length=255)] | None = Field(
        None, description="The user; `oidc:SUBJECT` of an identity provider."
    )
    group: Annotated[str, Field(max_length=255)] | None = Field(
        None, description="The identity provider's group, in place of a user."
    )
    role: BoundRole
    scope: Reach
    place: Annotated[str, Field(max_length=128)] = ""
    until: Timestamp | None = None


class RoleAt(Answer):
    """A role that is in force in some place."""

    role: str
    scope: Reach
    place: str = Field(description="Its name; empty for the organisation.")
    until: str | None = None


class Self(Answer):
    """Your account here, and what your token is good for."""

    name: str
    role: str = Field(description="In the whole organisation.")
    role_until: str | None = Field(default=None, description="When that role ends by itself.")
    supplier: str | None = Field(default=None, description="The authority that you are.")
    scopes: list[str]
    bound: list[RoleAt] = Field(description="Further roles, in force now.")


@router.get("/whoami")
def whoami(visit: VisitDep) -> Self:
    """Your name, your roles, and the scopes of your token."""
    caller = visit.caller
    bound = [
        RoleAt(role=each.role, scope=each.reach, place=each.place, until=each.until)
        for each in caller.bound
    ]
    return Self(**caller.facts(), bound=bound)


@router.get("/role-bindings")
def bindings(
    visit: VisitDep,
    page: PageDep,
    scope: Annotated[Reach | None, Query(description="Of such places only.")] = None,
    place: Annotated[str | None, Query(max_length=128, description="Of this place only.")] = None,
    user: Annotated[str | None, Query(max_length=255, description="Of this user only.")] = None,
    group: Annotated[str | None, Query(max_length=255, description="Of this group only.")] = None,
) -> Listing[Binding]:
    """The roles of the places that you see, and your own. Ended ones too."""
    row = RoleBinding
    statement = select(row).where(visible(visit.caller))
    statement = filtered(statement, (row.scope, scope), (row.place, place))
    for kind, subject in (("user", user), ("group", group)):
        if subject is not None:
            statement = statement.where(col(row.subject_kind) == kind, col(row.subject) == subject)
    order = (row.scope, row.place, row.id)
    return page.listing(visit.session, statement, order, Binding.model_validate)


@router.post("/role-bindings", status_code=201, responses=refusing(404))
def bind(visit: OnceDep, new: NewBinding) -> Binding:
    """Give a role in a place. For admins of it.

    The same role of the same subject again gets another end.
    """
    most = demand_manage(visit.session, visit.caller, new.scope, new.place)
    if (new.user is None) == (new.group is None):
        raise unprocessable("body: give a user or a group")
    check_lent(most, new.until, "this")
    begin_writing(visit.session)
    kind, subject = ("user", new.user) if new.user is not None else ("group", new.group)
    grant = Grant(
        subject_kind=kind,
        subject=subject or "",
        **new.model_dump(include={"role", "scope", "place", "until"}),
    )
    row = role_bindings.bind(visit.session, grant, by=visit.by)
    visit.session.commit()
    return Binding.model_validate(row)


@router.delete("/role-bindings/{binding}", status_code=204, responses=refusing(409))
def unbind(visit: VisitDep, binding: BindingId) -> None:
    """Take a role away. For admins of its place. The last admin of all stays."""
    found = select(RoleBinding).where(col(RoleBinding.id) == binding, visible(visit.caller))
    row = visit.session.execute(found).scalar_one_or_none()
    if row is None:
        raise not_found("binding", binding, "See the list of role bindings")
    demand_manage(visit.session, visit.caller, row.scope, row.place)
    role_bindings.unbind(visit.session, binding, by=visit.by)
    visit.session.commit()


def visible(caller: Caller) -> ColumnElement[bool]:
    """Condition on `RoleBinding`: those of places that the caller sees, and its own."""
    b = RoleBinding
    if everywhere(caller, "audit"):
        return true()
    p, w = tables.ProjectRow, tables.WorkspaceRow
    seen = select(col(p.name)).where(projects(caller))
    around = select(col(w.name)).where(project_rules.workspaces(caller))
    return or_(
        and_(col(b.subject_kind) == "user", col(b.subject) == caller.name),
        and_(col(b.scope) == "project", col(b.place).in_(seen)),
        and_(col(b.scope) == "workspace", col(b.place).in_(around)),
    )


class User(Answer):
    """Somebody with tokens of this store."""

    name: str
    role: str = Field(description="In the whole organisation.")
    supplier: str | None = None
    disabled: bool
    created: str


class UserChange(Body):
    """What becomes of a user."""

    disabled: Annotated[bool, Field(description="No token of a disabled user is accepted.")]


@router.get("/users", dependencies=[WATCHERS])
def users(session: SessionDep, page: PageDep) -> Listing[User]:
    """The users, by name. For admins and auditors of the organisation."""
    row = tables.UserRow
    return page.listing(session, select(row), (row.name,), User.model_validate)


@router.get("/users/{user}", dependencies=[WATCHERS], responses=ETAG)
def one_user(visit: VisitDep, user: UserPath, response: Response) -> User:
    """One user. For admins and auditors of the organisation."""
    row = _user(visit, user)
    tell(response, row.disabled)
    return User.model_validate(row)


@router.patch("/users/{user}", dependencies=[ADMINS, IF_MATCH], responses=refusing(409))
def change_user(visit: VisitDep, user: UserPath, change: UserChange) -> User:
    """Disable or enable a user. For admins of the organisation. The last of them stays."""
    begin_writing(visit.session)
    check_unchanged(visit.request, _user(visit, user).disabled)
    row = role_bindings.set_disabled(visit.session, user, change.disabled, by=visit.by)
    visit.session.commit()
    return User.model_validate(row)


def _user(visit: Visit, name: str) -> tables.UserRow:
    row = visit.session.get(tables.UserRow, name)
    if row is None:
        raise not_found("user", name, "See the list of users")
    return row
