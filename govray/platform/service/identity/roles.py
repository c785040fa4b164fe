"""Which role may do what: one table, and two functions over it. Pure; time is an argument.

The roles that a caller has in a project are those in the organisation, in the project's workspace
and in the project. A role that has ended does not count. Of a token's scope each action needs one.

========== ============================================================================
viewer     sees runs, models and usage of the place
engineer   submits there too, stops what it submitted, promotes the place's models, and sees
           the files of others' tasks
steward    the data steward: reads the corpora that the place's models used; in the
           organisation answers cases
auditor    sees what a viewer and a steward see, and the place's entries of the audit log; cases
           of the organisation, of a model, or the one that it is bound to
admin      all of that, stops everything, changes settings and gives roles there
========== ============================================================================

A supplier is one in the whole organisation, as `govray.platform.service.identity.caller` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from govray.platform.service.identity.caller import STAFF, Caller, PlaceRole, Reach, Scope
from govray.platform.store.tables import Project

Action = Literal[
    "view",
    "data",
    "audit",
    "task-file",
    "submit",
    "stop-own",
    "stop-any",
    "promote",
    "case",
    "decide",
    "manage",
]

_TABLE: Mapping[str, tuple[Scope, str]] = {
    "view": ("read", "viewer engineer steward auditor admin"),
    "data": ("read", "steward auditor admin"),
    "audit": ("read", "auditor admin"),
    "task-file": ("read", "engineer admin"),
    "submit": ("write", "engineer admin"),
    "stop-own": ("write", "engineer admin"),
    "stop-any": ("write", "admin"),
    "promote": ("write", "engineer admin"),
    "case": ("read", "steward auditor admin"),
    "decide": ("write", "steward admin"),
    "manage": ("admin", "admin"),
}
NEEDS = {action: scope for action, (scope, _) in _TABLE.items()}
"""Action → the scope that the token must have."""
ACTIONS = {action: frozenset(roles.split()) for action, (_, roles) in _TABLE.items()}
"""Action → the roles that may do it in a place where they are bound."""


def role_in(caller: Caller, project: Project | None, *, at: str) -> frozenset[str]:
    """The roles that ``caller`` has in ``project`` at ``at``; None: a project that nobody made.
    Roles of the organisation count everywhere, those of ``Caller.role`` too."""
    roles: set[str] = {each for each in STAFF if each == caller.role}
    for each in caller.bound:
        goes_on = each.until is None or each.until > at
        if goes_on and _reaches(each, project):
            roles.add(each.role)
    return frozenset(roles)


def may(caller: Caller, action: Action, project: Project | None, *, at: str) -> bool:
    """Whether ``caller`` may do ``action`` in ``project``, with the token that it came with."""
    return caller.has(NEEDS[action]) and bool(ACTIONS[action] & role_in(caller, project, at=at))


def places(caller: Caller, action: Action) -> dict[Reach, frozenset[str]]:
    """Where roles that are bound to places allow ``action``: reach → names.

    Without the role in the organisation that ``Caller.role`` is. For conditions of queries: the
    roles of a caller are those in force when it was found.
    """
    found: dict[Reach, set[str]] = {each: set() for each in get_args(Reach)}
    for each in caller.bound:
        if each.role in ACTIONS[action]:
            found[each.reach].add(each.place)
    return {reach: frozenset(names) for reach, names in found.items()}


def submits(caller: Caller) -> bool:
    """Whether there may be a project where roles that are bound let the caller submit."""
    return any(places(caller, "submit").values())


def _reaches(each: PlaceRole, project: Project | None) -> bool:
    match each.reach:
        case "organisation":
            return True
        case "workspace":
            return project is not None and each.place == project.workspace
        case "project":
            return project is not None and each.place == project.name
        case _:
            return False
