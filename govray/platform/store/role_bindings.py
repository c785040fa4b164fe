"""The roles that users and groups have in a part of the organisation.

A binding says: this user, or this group, is an engineer, in this project, until then. It counts for
all that lies in its place. A project's roles are those of the organisation, of its workspace and
its own. What a role may do is said by `govray.platform.service.identity.rights`.

Which groups a user is in says an identity provider. Here they are names.

Functions take a session and never commit. Times are arguments. Each change has its entry in the
audit log, in the same transaction.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, or_
from sqlmodel import Session, col, select

from govray.errors import Refused, UsageError
from govray.governance.formats import canonical_json
from govray.governance.formats.document import parse_time
from govray.platform.store.audit_log import ChangedBy, log
from govray.platform.store.database import begin_writing
from govray.platform.store.tables import RoleBinding, UserRow
from govray.platform.store.tenancy import get_project, get_workspace

ROLES = ("admin", "engineer", "steward", "auditor", "viewer")
SCOPES = ("organisation", "workspace", "project")
"""Where, from the whole to its parts."""
MOST_BINDINGS = 1000
"""Of one subject, and of one caller with all groups: further ones give nothing."""
MOST_GROUPS = 1000
"""Of one caller."""

_SUBJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:|/+=-]{0,254}")


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What is to be bound: ``role`` for ``subject``, in ``place``, which is a ``scope``."""

    subject_kind: str
    subject: str
    role: str
    scope: str
    place: str = ""
    until: str | None = None

    @property
    def id(self) -> str:
        """The binding's: the same for the same grant, whatever its end."""
        said = [self.subject_kind, self.subject, self.role, self.scope, self.place]
        return "b-" + hashlib.sha256(canonical_json.encode(said)).hexdigest()[:24]

    @property
    def where(self) -> str:
        return f"{self.scope} {self.place}" if self.place else self.scope


def bind(session: Session, grant: Grant, *, by: ChangedBy) -> RoleBinding:
    """Give a role, or give it another end. Raises `Refused`: the subject has too many, or no admin
    of the organisation would be left."""
    _check(session, grant, at=by.at)
    row = session.get(RoleBinding, grant.id)
    if row is None:
        own = select(RoleBinding.id).where(
            RoleBinding.subject_kind == grant.subject_kind, RoleBinding.subject == grant.subject
        )
        if len(session.exec(own.limit(MOST_BINDINGS)).all()) >= MOST_BINDINGS:
            raise Refused(f"it has {MOST_BINDINGS} roles already", where=grant.subject)
        row = RoleBinding(id=grant.id, made=by.at, user=by.user, **vars(grant))
    elif grant.until is not None and grant.role == "admin":
        with keeping_an_admin(session):
            row.until = grant.until
            session.flush()
    row.until = grant.until
    row.made, row.user = by.at, by.user
    session.add(row)
    log(session, by, "role.bind", grant.where, _told(row))
    return row


def unbind(session: Session, id_: str, *, by: ChangedBy) -> RoleBinding:
    """Take a role away. Raises `Refused`: no admin of the organisation would be left."""
    row = session.get(RoleBinding, id_)
    if row is None:
        raise UsageError("there is no such binding", where=id_[:80], do="See govray role ls")
    told, where = _told(row), f"{row.scope} {row.place}".strip()
    with keeping_an_admin(session):
        session.delete(row)
        session.flush()
    log(session, by, "role.unbind", where, told)
    return row


def of_caller(
    session: Session, user: str, groups: Collection[str], *, at: str
) -> Sequence[RoleBinding]:
    """The bindings that ``user`` has at ``at``, by itself and by its ``groups``, which an identity
    provider names."""
    b = RoleBinding
    given = sorted(groups)[:MOST_GROUPS]
    statement = (
        select(b)
        .where(
            or_(
                and_(col(b.subject_kind) == "user", col(b.subject) == user),
                and_(col(b.subject_kind) == "group", col(b.subject).in_(given)),
            ),
            in_force(at),
        )
        .order_by(col(b.id))
        .limit(MOST_BINDINGS)
    )
    return session.exec(statement).all()


def in_force(at: str) -> ColumnElement[bool]:
    """Condition on `RoleBinding`: it has not ended at ``at``."""
    return or_(col(RoleBinding.until).is_(None), col(RoleBinding.until) > at)


def set_disabled(session: Session, user: str, disabled: bool, *, by: ChangedBy) -> UserRow:
    """Disable or enable a user, and all the user's tokens. Raises `Refused`: no admin of the
    organisation would be left."""
    row = session.get(UserRow, user)
    if row is None:
        raise UsageError("there is no such user", where=user[:80], do="See govray token ls")
    with keeping_an_admin(session):
        row.disabled = disabled
        session.flush()
    log(session, by, "user.disable" if disabled else "user.enable", f"user {user}", {})
    return row


def has_admin(session: Session) -> bool:
    """Whether some user of the store is admin of the organisation, without an end. A role that ends
    does not count, nor do groups: nobody here knows who is in them."""
    enabled = select(UserRow.name).where(col(UserRow.disabled).is_(False))
    if session.exec(enabled.where(UserRow.role == "admin").limit(1)).first() is not None:
        return True
    b = RoleBinding
    lasting = select(b.id).where(
        col(b.role) == "admin",
        col(b.scope) == "organisation",
        col(b.until).is_(None),
        col(b.subject_kind) == "user",
        col(b.subject).in_(enabled),
    )
    return session.exec(lasting.limit(1)).first() is not None


@contextmanager
def keeping_an_admin(session: Session) -> Iterator[None]:
    """Refuse what takes the last admin of the organisation away. No other writes meanwhile. Raises
    `Refused`: the block took the last one away."""
    begin_writing(session)
    before = has_admin(session)
    yield
    if before and not has_admin(session):
        raise Refused(
            "no admin of the organisation would be left",
            where="organisation",
            do="Make another user admin first",
        )


def check_subject(kind: str, subject: str) -> str:
    """``subject``, if a user or group may have this name; a group's may be the provider's."""
    if kind not in ("user", "group"):
        raise UsageError(f"{kind[:80]!r} is neither user nor group", where="subject")
    if not _SUBJECT.fullmatch(subject):
        raise UsageError(f"{subject[:80]!r} is no name of a {kind}", where="subject")
    return subject


def _check(session: Session, grant: Grant, *, at: str) -> None:
    check_subject(grant.subject_kind, grant.subject)
    of_provider = grant.subject.startswith("oidc:")
    if (
        grant.subject_kind == "user"
        and not of_provider
        and session.get(UserRow, grant.subject) is None
    ):
        raise UsageError(
            "there is no such user",
            where=grant.subject,
            do="See govray token ls; a user of an identity provider is oidc:SUBJECT",
        )
    if grant.role not in ROLES or grant.scope not in SCOPES:
        wrong, known = (grant.role, ROLES) if grant.role not in ROLES else (grant.scope, SCOPES)
        what = "role to bind" if known is ROLES else "scope"
        raise UsageError(f"{wrong[:80]!r} is no {what}", do=f"Choose from {', '.join(known)}")
    if (grant.scope == "organisation") != (grant.place == ""):
        raise UsageError("a workspace or project has a name, the organisation has none")
    if grant.until is not None and parse_time(grant.until) <= parse_time(at):
        raise UsageError("it would be over already", where="until", do="Give a later time")
    if grant.scope == "workspace":
        get_workspace(session, grant.place)
    elif grant.scope == "project":
        get_project(session, grant.place)


def _told(row: RoleBinding) -> dict[str, str | None]:
    return {"subject": f"{row.subject_kind} {row.subject}", "role": row.role, "until": row.until}
