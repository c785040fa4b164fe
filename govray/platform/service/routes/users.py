"""Users of this store: who there is, and disabling one. Users of a provider are not among them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from sqlalchemy import select
from sqlmodel import col

from govray.platform.service.acting.project_rules import NowDep, changed_by
from govray.platform.service.http.answer import Answer, Body
from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.access import CallerDep
from govray.platform.service.identity.pagination import Listing, PageDep
from govray.platform.service.routes.role_bindings import ADMINS, WATCHERS, UserPath
from govray.platform.store import role_bindings, tables

router = APIRouter(tags=["roles"])


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
    kept, cursor = page.rows(session, select(row), (col(row.name),), (str,))
    return Listing(items=[User.model_validate(each) for each in kept], next=cursor)


@router.patch("/users/{user}", dependencies=[ADMINS])
def change_user(
    user: UserPath, change: UserChange, session: SessionDep, caller: CallerDep, at: NowDep
) -> User:
    """Disable or enable a user. For admins of the organisation. The last of them stays."""
    row = role_bindings.set_disabled(session, user, change.disabled, by=changed_by(caller, at))
    session.commit()
    return User.model_validate(row)
