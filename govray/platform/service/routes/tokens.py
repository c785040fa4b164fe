"""Bearer tokens: one's own, and for admins everyone's. A secret is in one answer and in no other.

Nobody makes a token that is good for more than the own. One that only reads makes none, or it would
outlive its end.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import Field
from sqlalchemy import ColumnElement, select, true
from sqlmodel import col

from govray.errors import UsageError
from govray.governance.formats.document import format_time
from govray.platform.service.acting.project_rules import check_lent
from govray.platform.service.http.answer import Answer, Body
from govray.platform.service.http.problems import not_allowed, not_found, refused, unprocessable
from govray.platform.service.identity import tokens
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.caller import Caller, Scope
from govray.platform.service.identity.pagination import Listing, PageDep
from govray.platform.service.identity.repeats import OnceWithSecretDep
from govray.platform.service.identity.rights import admin_until, everywhere, may
from govray.platform.service.identity.visit import VisitDep
from govray.platform.store import tables
from govray.platform.store.audit_log import log
from govray.platform.store.database import begin_writing
from govray.platform.store.tables import Token, UserRow

router = APIRouter(tags=["roles"], dependencies=[needs("account")])

LONGEST_DAYS = 365

TokenId = Annotated[
    str,
    Path(pattern="^[0-9a-f]{12}$", description="The token's id.", examples=["0123456789ab"]),
]


class TokenItem(Answer):
    """A token without its secret, which nobody has but its bearer."""

    id: str
    user: str
    name: str = Field(description="What it is for.")
    scopes: list[str]
    created: str
    expires: str
    revoked: str | None = None


class NewToken(Body):
    """A token to make. By default it is your own."""

    user: Annotated[str, Field(max_length=128)] | None = Field(
        None, description="Another user's, for admins."
    )
    role: Literal["admin", "engineer", "auditor", "supplier", "member"] | None = Field(
        None, description="Of a user who is new, for admins."
    )
    supplier: Annotated[str, Field(max_length=128)] | None = Field(
        None, description="The authority that a new supplier is."
    )
    scopes: list[Scope] = Field(default=["read"], min_length=1, max_length=3)
    name: Annotated[str, Field(max_length=128)] = ""
    days: Annotated[int, Field(ge=1, le=LONGEST_DAYS)] = 90


class MadeToken(TokenItem):
    """A token that was made. ``token`` is told here and never again."""

    token: str


@router.get("/tokens")
def listing(visit: VisitDep, page: PageDep) -> Listing[TokenItem]:
    """Your tokens; for admins of the organisation all of them. By user."""
    row = Token
    statement = select(row).where(own(visit.caller))
    order = (row.user, row.id)
    return page.listing(visit.session, statement, order, TokenItem.model_validate)


@router.post("/tokens", status_code=201)
def make(visit: OnceWithSecretDep, new: NewToken) -> MadeToken:
    """Make a token of your own; for admins anyone's, and its user if that is new."""
    at, user = visit.request.app.state.clock(), new.user or visit.caller.name
    others = user != visit.caller.name or new.role is not None or new.supplier is not None
    need: Scope = "admin" if others else "write"
    stranger = others and not everywhere(visit.caller, "manage")
    if stranger or not visit.caller.has(need):
        raise not_allowed(
            "Tokens of others are made by admins"
            if stranger
            else f"The token has not the scope {need}",
            "Ask an admin, or use a token with that scope",
        )
    for scope in new.scopes:
        if not visit.caller.has(scope):
            raise not_allowed(f"Your own token has not the scope {scope}", "Ask for less")
    if others:
        ends = format_time(at + timedelta(days=new.days))
        own = admin_until(visit.caller, None)
        check_lent(own, ends, "the token")
        if new.role is not None:
            check_lent(own, None, "a new user's role")
    if not new.name.isprintable():
        raise unprocessable("body.name: it cannot be printed")
    begin_writing(visit.session)
    if not others and visit.session.get(UserRow, user) is None:
        raise refused(
            "You have no account in this store, so no tokens of it",
            "Use the tokens of your identity provider, or ask an admin for an account",
        )
    try:
        text = tokens.new(visit.session, user, at=at, **new.model_dump(exclude={"user"}))
    except UsageError as error:
        raise unprocessable(f"body: {error.what}", error.do) from None
    row = tokens.row(visit.session, text)
    made = {"id": row.id, "scopes": list(row.scopes), "until": row.expires}
    log(visit.session, visit.by, "token.make", f"user {user}", made)
    told = MadeToken(**TokenItem.model_validate(row).model_dump(), token=text)
    visit.session.commit()
    return told


@router.post("/tokens/{token}:revoke")
def revoke(visit: VisitDep, token: TokenId) -> TokenItem:
    """Revoke a token of your own, for ever; for admins anyone's. It ends within two seconds."""
    found = select(Token).where(col(Token.id) == token, own(visit.caller))
    row: Token | None = visit.session.execute(found).scalar_one_or_none()
    if row is None:
        raise not_found("token", token, "See your tokens")
    tokens.revoke(visit.session, row.id, at=visit.request.app.state.clock())
    log(visit.session, visit.by, "token.revoke", f"user {row.user}", {"id": row.id})
    visit.session.commit()
    return TokenItem.model_validate(row)


def own(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Token`: the caller's; all of them for an admin with a token for that."""
    if may(caller, "manage", None):
        return true()
    return col(tables.Token.user) == caller.name
