"""Groups, and the roles that users and groups have in a part of the organisation.

A binding says: this user, or this group, is an engineer, in this project, until then. It counts for
all that lies in its place. A project's roles are those of the organisation, of its workspace and
its own. What a role may do is said by `govray.platform.service.identity.roles`.

Corpora are the organisation's, so a supplier is one in the whole organisation, of an authority. An
auditor may be bound to one registered model, or to one rights holder's case.

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
from govray.platform.store.tables import GroupMember, Model, RightsCase, RoleBinding, User
from govray.platform.store.tenancy import check_name, get_project, get_workspace

ROLES = ("admin", "engineer", "steward", "auditor", "viewer", "supplier")
SCOPES = ("organisation", "workspace", "project", "model", "case")
"""Where, from the whole to its parts."""
MOST_MEMBERS = 10_000
"""Of one group."""
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
    supplier: str | None = None
    until: str | None = None

    @property
    def id(self) -> str:
        """The binding's: the same for the same grant, whatever its end."""
        said = [self.subject_kind, self.subject, self.role, self.scope, self.place]
        if self.supplier is not None:
            said.append(self.supplier)
        return "b-" + hashlib.sha256(canonical_json.encode([*said])).hexdigest()[:24]

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
    """The bindings that ``user`` has at ``at``, by itself and by its groups. ``groups``: what an
    identity provider says of the user; those of the store count besides."""
    b, member = RoleBinding, GroupMember
    own_groups = select(member.group).where(member.user == user)
    given = sorted(groups)[:MOST_GROUPS]
    statement = (
        select(b)
        .where(
            or_(
                and_(col(b.subject_kind) == "user", col(b.subject) == user),
                and_(
                    col(b.subject_kind) == "group",
                    or_(col(b.subject).in_(given), col(b.subject).in_(own_groups)),
                ),
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


def add_member(session: Session, group: str, user: str, *, by: ChangedBy) -> GroupMember:
    """Put a user of the store into a group, which is made by its first member."""
    check_name(group, "group")
    if session.get(User, user) is None:
        raise UsageError("there is no such user", where=user[:80], do="See govray token ls")
    row = session.get(GroupMember, (group, user))
    if row is not None:
        return row
    there = select(GroupMember.user).where(GroupMember.group == group).limit(MOST_MEMBERS)
    if len(session.exec(there).all()) >= MOST_MEMBERS:
        raise Refused(f"it has {MOST_MEMBERS} members already", where=f"group {group}")
    row = GroupMember(group=group, user=user)
    session.add(row)
    log(session, by, "group.add", f"group {group}", {"user": user})
    return row


def ends_of_group(session: Session, group: str) -> Sequence[str | None]:
    """When the roles of a group end; None: never."""
    b = RoleBinding
    of_group = select(b.until).where(b.subject_kind == "group", b.subject == group)
    return session.exec(of_group.distinct().limit(MOST_BINDINGS)).all()


def remove_member(session: Session, group: str, user: str, *, by: ChangedBy) -> None:
    """Take a user out of a group. Raises `Refused`: no admin of the organisation would be left."""
    row = session.get(GroupMember, (group, user))
    if row is None:
        raise UsageError(f"{user[:80]!r} is not in it", where=f"group {group[:80]}")
    with keeping_an_admin(session):
        session.delete(row)
        session.flush()
    log(session, by, "group.remove", f"group {group}", {"user": user})


def set_disabled(session: Session, user: str, disabled: bool, *, by: ChangedBy) -> User:
    """Disable or enable a user, and all the user's tokens. Raises `Refused`: no admin of the
    organisation would be left."""
    row = session.get(User, user)
    if row is None:
        raise UsageError("there is no such user", where=user[:80], do="See govray token ls")
    with keeping_an_admin(session):
        row.disabled = disabled
        session.flush()
    log(session, by, "user.disable" if disabled else "user.enable", f"user {user}", {})
    return row


def has_admin(session: Session) -> bool:
    """Whether some user of the store is admin of the organisation, without an end. A role that ends
    does not count, nor do groups of an identity provider: nobody here knows who is in them."""
    enabled = select(User.name).where(col(User.disabled).is_(False))
    if session.exec(enabled.where(User.role == "admin").limit(1)).first() is not None:
        return True
    b, member = RoleBinding, GroupMember
    lasting = (
        col(b.role) == "admin",
        col(b.scope) == "organisation",
        col(b.until).is_(None),
    )
    by_user = select(b.id).where(
        *lasting, col(b.subject_kind) == "user", col(b.subject).in_(enabled)
    )
    by_group = select(b.id).where(
        *lasting,
        col(b.subject_kind) == "group",
        col(b.subject).in_(select(member.group).where(col(member.user).in_(enabled))),
    )
    return any(session.exec(each.limit(1)).first() is not None for each in (by_user, by_group))


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
        and session.get(User, grant.subject) is None
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
        raise UsageError(
            "a workspace, project, model or case has a name, the organisation has none"
        )
    if grant.scope in ("model", "case") and grant.role != "auditor":
        raise UsageError(f"only an auditor is bound to a {grant.scope}", where=grant.place)
    if (grant.role == "supplier") != (grant.supplier is not None):
        raise UsageError(
            "a supplier, and only a supplier, is one of an issuing authority",
            do="Give the authority that issues its credentials",
        )
    if grant.role == "supplier" and grant.scope != "organisation":
        raise UsageError(
            "corpora are the organisation's, so a supplier is bound there", where=grant.place
        )
    if grant.supplier is not None:
        check_subject("user", grant.supplier)
    if grant.until is not None and parse_time(grant.until) <= parse_time(at):
        raise UsageError("it would be over already", where="until", do="Give a later time")
    if grant.scope == "workspace":
        get_workspace(session, grant.place)
    elif grant.scope == "project":
        get_project(session, grant.place)
    elif grant.scope == "model" and session.get(Model, grant.place) is None:
        raise UsageError("there is no such model", where=grant.place[:80])
    elif grant.scope == "case" and session.get(RightsCase, grant.place) is None:
        raise UsageError("there is no such case", where=grant.place[:80])


def _told(row: RoleBinding) -> dict[str, str | None]:
    told = {"subject": f"{row.subject_kind} {row.subject}", "role": row.role, "until": row.until}
    return told | ({"supplier": row.supplier} if row.supplier else {})
