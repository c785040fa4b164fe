"""Pages of users and of tokens, and forms that change them.

A new token's secret stands on the page that answers the form, and on no other. That page is kept by
no cache.
"""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select
from sqlmodel import col

from govray.platform.service.identity.caller import ROLES, SCOPES
from govray.platform.service.identity.pagination import Page, PageDep
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.pages.form_fields import FormDep, checked, field, then
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes import tokens as routes
from govray.platform.service.routes.role_bindings import ADMINS, WATCHERS
from govray.platform.service.routes.tokens import NewToken, own
from govray.platform.service.visible.readers import SIGNED_IN, administers
from govray.platform.store import role_bindings
from govray.platform.store.tables import GroupMember, Token, User

router = APIRouter()


@router.get("/users", dependencies=[WATCHERS])
def users(visit: VisitDep, page: PageDep) -> HTMLResponse:
    rows, after = page.rows(visit.session, select(User), [User.name])
    m = GroupMember
    groups: dict[str, list[str]] = {}
    found = select(col(m.user), col(m.group)).where(col(m.user).in_([row.name for row in rows]))
    for user, group in visit.session.execute(found.order_by(col(m.group)).limit(10_000)):
        groups.setdefault(user, []).append(group)
    return render(
        visit,
        "users.html",
        users=rows,
        groups=groups,
        after=after,
        changes=administers(visit.caller),
    )


@router.post("/users", dependencies=[ADMINS])
def change(visit: VisitDep, fields: FormDep) -> Response:
    disabled = field(fields, "disabled") == "yes"
    role_bindings.set_disabled(visit.session, field(fields, "user"), disabled, by=visit.by)
    visit.session.commit()
    return then("/users")


@router.get("/tokens", dependencies=[SIGNED_IN])
def tokens(visit: VisitDep, page: PageDep) -> HTMLResponse:
    return _tokens(visit, page)


@router.post("/tokens", dependencies=[SIGNED_IN])
def make(visit: VisitDep, fields: FormDep, page: PageDep) -> HTMLResponse:
    given = {"name": fields.get("name", ""), "days": fields.get("days") or "90"}
    for name in ("user", "role", "supplier"):
        given |= {name: fields[name]} if fields.get(name) else {}
    scopes = [each for each in SCOPES if each == (fields.get("scope") or "read")]
    new = checked(NewToken, {**given, "scopes": scopes})
    made = routes.make(visit, new)
    told = {"text": made.token, "user": made.user, "expires": made.expires}
    return _tokens(visit, page, told)


@router.post("/tokens/revoke", dependencies=[SIGNED_IN])
def revoke(visit: VisitDep, fields: FormDep) -> Response:
    routes.revoke(visit, field(fields, "token"))
    return then("/tokens")


def _tokens(visit: Visit, page: Page, told: dict[str, str] | None = None) -> HTMLResponse:
    statement = select(Token).where(own(visit.caller))
    rows, after = page.rows(visit.session, statement, [Token.user, Token.id])
    admin = administers(visit.caller)
    return render(
        visit,
        "tokens.html",
        tokens=rows,
        after=after,
        made=told,
        at=visit.at,
        admin=admin,
        account=admin or visit.session.get(User, visit.caller.name) is not None,
        writes=visit.caller.has("write"),
        scopes=[each for each in SCOPES if visit.caller.has(each)],
        roles=[each for each in ROLES if each != "public"],
    )
