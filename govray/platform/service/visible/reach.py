"""What lies in the places where a caller has roles: conditions for queries.

A run lies in the project that its experiment names, and an attestation where its run lies. An
attestation lies in a model, too, if it is a version of it. Who reads what follows in
`govray.platform.service.visible`; here is only what a role in a place reaches.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, false, or_, select, true
from sqlmodel import Session, col

from govray.platform.service.identity.caller import STAFF, Caller
from govray.platform.service.identity.roles import ACTIONS, Action, places
from govray.platform.store import tables


def is_staff(caller: Caller) -> bool:
    """Whether the caller reads every corpus, and every run."""
    return not caller.roles.isdisjoint(STAFF)


def everywhere(caller: Caller, action: Action) -> bool:
    """Whether the caller may do ``action`` in the whole organisation, by a role of `STAFF`."""
    allowed = STAFF if action in ("view", "data") else ACTIONS[action] & set(STAFF)
    return not caller.roles.isdisjoint(allowed)


def in_projects(caller: Caller, column: Any, action: Action = "view") -> ColumnElement[bool]:
    """Condition on a ``column`` with projects' names: those where the caller may do ``action``. Who
    may do it `everywhere` may do it also where nobody made a project of the name."""
    if everywhere(caller, action):
        return true()
    found = places(caller, action)
    p = tables.Project
    if found["organisation"]:
        return col(column).in_(select(col(p.name)))
    conditions: list[ColumnElement[bool]] = [false()]
    if found["project"]:
        conditions.append(col(column).in_(sorted(found["project"])))
    if found["workspace"]:
        inside = select(col(p.name)).where(col(p.workspace).in_(sorted(found["workspace"])))
        conditions.append(col(column).in_(inside))
    return or_(*conditions)


def of_runs(caller: Caller, run: Any, action: Action = "view") -> ColumnElement[bool]:
    """Condition on a column with runs' names: those in `in_projects`."""
    if everywhere(caller, action):
        return true()
    if not caller.bound:
        return false()
    e, t = tables.Experiment, tables.Run
    named = (
        select(col(t.id))
        .join(e, col(e.id) == col(t.experiment))
        .where(in_projects(caller, e.project, action))
    )
    return col(run).in_(named)


def within(caller: Caller, action: Action = "view") -> ColumnElement[bool]:
    """Condition on `Attestation`: of runs and models where the caller may do ``action``."""
    a, v = tables.Attestation, tables.ModelVersion
    condition = of_runs(caller, a.run, action)
    if models := places(caller, action)["model"]:
        named = select(col(v.attestation)).where(col(v.model).in_(sorted(models)))
        condition |= col(a.digest).in_(named)
    return condition


def is_within(session: Session, caller: Caller, attestation: str, action: Action = "view") -> bool:
    """Whether an attestation is `within` where the caller may do ``action``."""
    if everywhere(caller, action) or not caller.bound:
        return everywhere(caller, action)
    a = tables.Attestation
    found = select(col(a.digest)).where(col(a.digest) == attestation, within(caller, action))
    return session.execute(found).first() is not None
