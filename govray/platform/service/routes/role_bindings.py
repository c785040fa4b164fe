"""Groups, and roles bound to the organisation, a workspace, a project, a model or a case.

Only an admin of a place gives roles there and takes them away, and nobody gives what lasts longer
than the own. Groups are the organisation's, since one may have roles in many places.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import Field
from sqlalchemy import ColumnElement, and_, func, or_, select, true
from sqlmodel import col

from govray.governance.formats.document import Timestamp
from govray.platform.service.acting import project_rules
from govray.platform.service.acting.project_rules import PlaceName, check_lent, demand_manage
from govray.platform.service.http.answer import Answer, Body
from govray.platform.service.http.edits import ETAG, IF_MATCH, check_unchanged, tell
from govray.platform.service.http.problems import not_found, refused, unprocessable
from govray.platform.service.http.session import SessionDep
from govray.platform.service.http.statuses import ANY_NAME, refusing
from govray.platform.service.identity.access import require
from govray.platform.service.identity.caller import BoundRole, Caller, Reach
from govray.platform.service.identity.pagination import Listing, PageDep, filtered
from govray.platform.service.identity.repeats import OnceDep
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.visible.readers import SIGNED_IN, watches
from govray.platform.store import role_bindings, tables
from govray.platform.store.database import begin_writing
from govray.platform.store.role_bindings import Grant
from govray.platform.store.tables import GroupMember, RoleBinding

router = APIRouter(tags=["roles"], dependencies=[SIGNED_IN])
ADMINS = Depends(require("admin", scope="admin"))
WATCHERS = Depends(require("admin", "auditor"))

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
        description="The name of the workspace, project or model, the number of a case; else empty."
    )
    supplier: str | None = Field(default=None, description="The authority that a supplier is.")
    until: str | None = Field(default=None, description="When it ends by itself.")
    made: str
    user: str = Field(description="Who gave it.")


class NewBinding(Body):
    """A role to give, or to give another end."""

    user: Annotated[str, Field(max_length=255)] | None = Field(
        None, description="The user; `oidc:SUBJECT` of an identity provider."
    )
    group: Annotated[str, Field(max_length=255)] | None = Field(
        None, description="The group, in place of a user."
    )
    role: BoundRole
    scope: Reach
    place: Annotated[str, Field(max_length=128)] = ""
    supplier: Annotated[str, Field(max_length=128)] | None = None
    until: Timestamp | None = None


class Group(Answer):
    """A group of this store."""

    name: str
    members: int


class Member(Answer):
    """A user in a group."""

    user: str


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
    most = demand_manage(visit.session, visit.caller, new.scope, new.place, at=visit.at)
    if (new.user is None) == (new.group is None):
        raise unprocessable("body: give a user or a group")
    if most is not None and (new.until is None or new.until > most):
        raise refused(
            f"Your own role there ends at {most}, and this would last longer",
            "Give an end that is not later",
        )
    begin_writing(visit.session)
    kind, subject = ("user", new.user) if new.user is not None else ("group", new.group)
    grant = Grant(
        subject_kind=kind,
        subject=subject or "",
        **new.model_dump(include={"role", "scope", "place", "supplier", "until"}),
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
    demand_manage(visit.session, visit.caller, row.scope, row.place, at=visit.at)
    role_bindings.unbind(visit.session, binding, by=visit.by)
    visit.session.commit()


def visible(caller: Caller) -> ColumnElement[bool]:
    """Condition on `RoleBinding`: those of places that the caller sees, and its own."""
    b = RoleBinding
    if watches(caller):
        return true()
    p, w = tables.Project, tables.Workspace
    projects = select(col(p.name)).where(project_rules.projects(caller))
    workspaces = select(col(w.name)).where(project_rules.workspaces(caller))
    return or_(
        and_(col(b.subject_kind) == "user", col(b.subject) == caller.name),
        and_(col(b.scope) == "project", col(b.place).in_(projects)),
        and_(col(b.scope) == "workspace", col(b.place).in_(workspaces)),
    )


@router.get("/groups", dependencies=[WATCHERS])
def groups(session: SessionDep, page: PageDep) -> Listing[Group]:
    """The groups of this store, by name. An identity provider's are not listed."""
    counted = (
        select(col(GroupMember.group).label("name"), func.count().label("members"))
        .group_by(col(GroupMember.group))
        .subquery()
    )
    statement = select(counted.c.name, counted.c.members)
    return page.listing(session, statement, (counted.c.name,), Group.model_validate)


@router.get("/groups/{group}/members", dependencies=[WATCHERS, ANY_NAME])
def members(group: PlaceName, session: SessionDep, page: PageDep) -> Listing[Member]:
    """List the members of a group, by name. A group without members is no group."""
    row = GroupMember
    statement = select(row).where(col(row.group) == group)
    return page.listing(session, statement, (row.user,), Member.model_validate)


@router.put(
    "/groups/{group}/members/{user}", dependencies=[ADMINS, ANY_NAME], responses=refusing(409)
)
def add_member(visit: VisitDep, group: PlaceName, user: UserPath) -> Member:
    """Put a user into a group. The first member makes it. For admins of the organisation."""
    begin_writing(visit.session)
    if visit.caller.role_until is not None:
        for until in role_bindings.ends_of_group(visit.session, group):
            check_lent(visit.caller, until, f"a role of the group {group}")
    row = role_bindings.add_member(visit.session, group, user, by=visit.by)
    visit.session.commit()
    return Member.model_validate(row)


@router.delete("/groups/{group}/members/{user}", status_code=204, dependencies=[ADMINS, ANY_NAME])
def remove_member(visit: VisitDep, group: PlaceName, user: UserPath) -> None:
    """Take a user out of a group. For admins of the organisation."""
    role_bindings.remove_member(visit.session, group, user, by=visit.by)
    visit.session.commit()


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
    row = tables.User
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


def _user(visit: Visit, name: str) -> tables.User:
    row = visit.session.get(tables.User, name)
    if row is None:
        raise not_found("user", name, "See the list of users")
    return row
