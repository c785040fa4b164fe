"""Pages of users and of tokens, and forms that change them.

A new token's secret stands on the page that answers the form, and on no other. That page is kept by
no cache.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select
from sqlmodel import Session, col

from govray.platform.service.acting.project_rules import NowDep, changed_by
from govray.platform.service.http.checked_fields import checked
from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.access import CallerDep
from govray.platform.service.identity.caller import ROLES, SCOPES, Caller
from govray.platform.service.identity.pagination import Page, PageDep
from govray.platform.service.pages.form_fields import FormDep, field, then
from govray.platform.service.pages.projects import SIGNED_IN
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes.role_bindings import ADMINS, WATCHERS
from govray.platform.service.routes.tokens import NewToken, made, own, revoked
from govray.platform.service.visible.visibility import administers
from govray.platform.store import role_bindings
from govray.platform.store.tables import GroupMember, Token, User

router = APIRouter()

_USER: Any = User.name
_TOKEN: list[Any] = [Token.user, Token.id]


@router.get("/users", dependencies=[WATCHERS])
def users(request: Request, caller: CallerDep, session: SessionDep, page: PageDep) -> HTMLResponse:
    rows, after = page.rows(session, select(User), [_USER], [str])
    m = GroupMember
    groups: dict[str, list[str]] = {}
    found = select(col(m.user), col(m.group)).where(col(m.user).in_([row.name for row in rows]))
    for user, group in session.execute(found.order_by(col(m.group)).limit(10_000)):
        groups.setdefault(user, []).append(group)
    return render(
        request,
        caller,
        "users.html",
        users=rows,
        groups=groups,
        after=after,
        changes=administers(caller),
    )


@router.post("/users", dependencies=[ADMINS])
def change(fields: FormDep, caller: CallerDep, session: SessionDep, at: NowDep) -> Response:
    disabled = field(fields, "disabled") == "yes"
    role_bindings.set_disabled(session, field(fields, "user"), disabled, by=changed_by(caller, at))
    session.commit()
    return then("/users")


@router.get("/tokens", dependencies=[SIGNED_IN])
def tokens(
    request: Request, caller: CallerDep, session: SessionDep, page: PageDep, at: NowDep
) -> HTMLResponse:
    return _tokens(request, caller, session, page, at)


@router.post("/tokens", dependencies=[SIGNED_IN])
def make(
    request: Request,
    fields: FormDep,
    caller: CallerDep,
    session: SessionDep,
    page: PageDep,
    at: NowDep,
) -> HTMLResponse:
    given = {"name": fields.get("name", ""), "days": fields.get("days") or "90"}
    for name in ("user", "role", "supplier"):
        given |= {name: fields[name]} if fields.get(name) else {}
    scopes = [each for each in SCOPES if each == (fields.get("scope") or "read")]
    new = checked(NewToken, {**given, "scopes": scopes})
    text, row = made(session, caller, new, request.app.state.clock())
    told = {"text": text, "user": row.user, "expires": row.expires}
    session.commit()
    return _tokens(request, caller, session, page, at, told)


@router.post("/tokens/revoke", dependencies=[SIGNED_IN])
def revoke(request: Request, fields: FormDep, caller: CallerDep, session: SessionDep) -> Response:
    revoked(session, caller, field(fields, "token"), request.app.state.clock())
    session.commit()
    return then("/tokens")


def _tokens(
    request: Request,
    caller: Caller,
    session: Session,
    page: Page,
    at: str,
    told: dict[str, str] | None = None,
) -> HTMLResponse:
    statement = select(Token).where(own(caller))
    rows, after = page.rows(session, statement, _TOKEN, [str, str])
    admin = administers(caller)
    return render(
        request,
        caller,
        "tokens.html",
        tokens=rows,
        after=after,
        made=told,
        at=at,
        admin=admin,
        account=admin or session.get(User, caller.name) is not None,
        writes=caller.has("write"),
        scopes=[each for each in SCOPES if caller.has(each)],
        roles=[each for each in ROLES if each != "public"],
    )
