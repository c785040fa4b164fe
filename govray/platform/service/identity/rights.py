"""May they do it? One table of actions, one question of a place, and its condition for queries.

The organisation holds workspaces, and these hold projects. A role counts where it is bound, and in
all that lies within; roles add up. A `Caller` has only roles that have not ended. Each action needs
a scope of the token, too.

========== ============================================================================
viewer     sees runs, models and usage of the place
engineer   submits there too, stops what it submitted, promotes the place's models, and sees
           the files of others' tasks
steward    the data steward: reads the corpora that the place's models used; in the
           organisation answers cases
auditor    sees what a viewer and a steward see, and the place's entries of the audit log; in
           the organisation all cases
admin      all of that, stops everything, changes settings and gives roles there
========== ============================================================================

`may` answers for one place, `projects` and what follows from it for a query's rows. `somewhere`
is what a route asks before it looks at anything. No other module says what a role allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sqlalchemy import ColumnElement, false, select, true
from sqlmodel import Session, col

from govray.platform.service.identity.caller import Caller, Reach, Scope
from govray.platform.store import tables
from govray.platform.store.tables import ProjectRow, WorkspaceRow

Action = Literal[
    "view",
    "data",
    "audit",
    "task-file",
    "submit",
    "stop-any",
    "promote",
    "manage",
    "case",
    "decide",
    "infer",
    "account",
]
Place: TypeAlias = ProjectRow | WorkspaceRow | None
"""None: the organisation alone, or a project that nobody made."""


@dataclass(frozen=True)
class Right:
    """What an action needs: a scope of the token, and one of these roles.

    Attributes:
        place: Roles that allow it in the place where they are bound.
        everywhere: Roles of the whole organisation that allow it for whatever there is, also
            where nobody made a project.
    """

    scope: Scope
    place: frozenset[str]
    everywhere: frozenset[str]


def _right(scope: Scope, place: str, everywhere: str = "") -> Right:
    return Right(scope, frozenset(place.split()), frozenset((everywhere or place).split()))


_STAFF = "engineer auditor admin"
RIGHTS: dict[Action, Right] = {
    "view": _right("read", "viewer engineer steward auditor admin", _STAFF),
    "data": _right("read", "steward auditor admin", f"steward {_STAFF}"),
    "audit": _right("read", "auditor admin"),
    "task-file": _right("read", "engineer admin"),
    "submit": _right("write", "engineer admin"),
    "stop-any": _right("write", "admin"),
    "promote": _right("write", "engineer admin"),
    "manage": _right("admin", "admin"),
    # Of the organisation alone: a role in a part of it says nothing of these.
    "case": _right("read", "", "steward auditor admin"),
    "decide": _right("write", "", "steward admin"),
    "infer": _right("read", "", f"supplier {_STAFF}"),
    "account": _right("read", "", f"member supplier {_STAFF}"),
}


def roles_in(caller: Caller, place: Place) -> frozenset[str]:
    """The roles that ``caller`` has in ``place``: the organisation's, and those bound around it."""
    around = _around(place)
    bound = (each.role for each in caller.bound if (each.reach, each.place) in around)
    return RIGHTS["view"].place & {caller.account, *bound}


def may(caller: Caller, action: Action, place: Place) -> bool:
    """Whether ``caller`` may do ``action`` in ``place``, with the token that it came with."""
    right = RIGHTS[action]
    allowed = everywhere(caller, action) or bool(right.place & roles_in(caller, place))
    return allowed and caller.has(right.scope)


def everywhere(caller: Caller, action: Action) -> bool:
    """Whether roles of the organisation allow ``action``, whatever it is about."""
    return not caller.roles.isdisjoint(RIGHTS[action].everywhere)


def somewhere(caller: Caller, action: Action) -> bool:
    """Whether there may be something that roles allow ``action`` for. A supplier has corpora."""
    held = any(each.role in RIGHTS[action].place for each in caller.bound)
    own = action == "data" and caller.role == "supplier"
    return everywhere(caller, action) or held or own


def may_change(caller: Caller, project: ProjectRow | None, owner: str) -> bool:
    """Whether the caller may stop, pin or delete what ``owner`` started in a project."""
    return may(caller, "submit" if owner == caller.name else "stop-any", project)


def admin_until(caller: Caller, place: Place) -> str | None:
    """When the caller ceases to be an admin of ``place``; None: never; empty: before now."""
    around = _around(place)
    ends = [b.until for b in caller.bound if b.role == "admin" and (b.reach, b.place) in around]
    if caller.account == "admin" or None in ends:
        return None
    return max((each for each in ends if each is not None), default="")


def _around(place: Place) -> set[tuple[Reach, str]]:
    """The places where roles are bound that count in ``place``."""
    found: set[tuple[Reach, str]] = {("organisation", "")}
    if isinstance(place, WorkspaceRow):
        found.add(("workspace", place.name))
    elif place is not None:
        found |= {("workspace", place.workspace), ("project", place.name)}
    return found


def projects(caller: Caller, action: Action = "view") -> ColumnElement[bool]:
    """Condition on `ProjectRow`: those where the caller may do ``action``."""
    if _whole(caller, action):
        return true()
    inside = col(ProjectRow.workspace).in_(_named(caller, action, "workspace"))
    return inside | col(ProjectRow.name).in_(_named(caller, action, "project"))


def workspaces(caller: Caller, action: Action = "view") -> ColumnElement[bool]:
    """Condition on `WorkspaceRow`: those in all of which the caller may do ``action``."""
    if _whole(caller, action):
        return true()
    return col(WorkspaceRow.name).in_(_named(caller, action, "workspace"))


def in_projects(caller: Caller, column: Any, action: Action = "view") -> ColumnElement[bool]:
    """Condition on a ``column`` with projects' names: those of `projects`. Who may do it
    `everywhere` may do it also where nobody made a project of the name."""
    if everywhere(caller, action):
        return true()
    if not somewhere(caller, action):
        return false()
    return col(column).in_(select(col(ProjectRow.name)).where(projects(caller, action)))


def of_runs(caller: Caller, run: Any, action: Action = "view") -> ColumnElement[bool]:
    """Condition on a column with runs' names: a run lies in the project that its experiment
    names."""
    if everywhere(caller, action):
        return true()
    if not somewhere(caller, action):
        return false()
    e, t = tables.ExperimentRow, tables.RunRow
    named = (
        select(col(t.id))
        .join(e, col(e.id) == col(t.experiment))
        .where(in_projects(caller, e.project, action))
    )
    return col(run).in_(named)


def within(caller: Caller, action: Action = "view") -> ColumnElement[bool]:
    """Condition on `Attestation`: it lies where its run lies."""
    return of_runs(caller, tables.AttestationRow.run, action)


def is_within(session: Session, caller: Caller, attestation: str, action: Action = "view") -> bool:
    """Whether an attestation is `within` where the caller may do ``action``."""
    if everywhere(caller, action) or not somewhere(caller, action):
        return everywhere(caller, action)
    a = tables.AttestationRow
    found = select(col(a.digest)).where(col(a.digest) == attestation, within(caller, action))
    return session.execute(found).first() is not None


def _whole(caller: Caller, action: Action) -> bool:
    """Whether roles allow ``action`` in all workspaces and projects that somebody made."""
    return everywhere(caller, action) or not caller.roles.isdisjoint(RIGHTS[action].place)


def _named(caller: Caller, action: Action, reach: Reach) -> list[str]:
    allowed = RIGHTS[action].place
    return sorted({b.place for b in caller.bound if b.reach == reach and b.role in allowed})
