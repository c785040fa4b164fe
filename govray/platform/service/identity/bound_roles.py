"""The roles that a caller has in parts of the organisation, read once for each accepted token.

A role of a whole organisation that `Caller.role` knows becomes that, if it is the greater one. So
an engineer of the organisation is the same by an account and by a group. The account's own role
then stays among the others. Roles add up: an auditor who becomes an engineer still audits.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlmodel import Session

from govray.governance.formats.document import format_time, parse_time
from govray.platform.service.identity.caller import ROLES, STAFF, Caller, PlaceRole
from govray.platform.service.identity.tokens import Accepted
from govray.platform.store.role_bindings import of_caller
from govray.platform.store.tables import RoleBinding

_RAISING = ("admin", "engineer", "auditor", "supplier")


def with_roles(session: Session, accepted: Accepted, *, at: datetime) -> Accepted:
    """``accepted`` with the roles in force at ``at``, remembered no longer than they last."""
    caller = accepted.caller
    rows = of_caller(session, caller.name, caller.groups, at=format_time(at))
    if not rows:
        return accepted
    ends = [parse_time(row.until) for row in rows if row.until is not None]
    return replace(accepted, caller=bound(caller, rows), expires=min([accepted.expires, *ends]))


def bound(caller: Caller, rows: Any) -> Caller:
    """``caller`` with the roles of ``rows``, which are `RoleBinding`."""
    found = [_bound(row) for row in rows if row.role != "supplier"]
    everywhere = {row.role for row in rows if row.scope == "organisation"} & set(_RAISING)
    role = next((each for each in ROLES if each in {caller.role, *everywhere}), caller.role)
    if role != caller.role and caller.role in STAFF:
        own: Any = caller.role  # `BoundRole` has those of the staff
        found.append(PlaceRole(role=own, reach="organisation"))
    supplier = caller.supplier if role == caller.role else None
    if role == "supplier" and supplier is None:
        supplier = next(row.supplier for row in rows if row.role == "supplier")
    ends = [row.until for row in rows if row.role == role and row.scope == "organisation"]
    lent = role != caller.role and all(ends)
    return replace(
        caller,
        role=role,
        supplier=supplier,
        bound=tuple(found),
        role_until=max(ends) if lent else None,
    )


def _bound(row: RoleBinding) -> PlaceRole:
    fields: Any = {"role": row.role, "reach": row.scope}
    return PlaceRole(**fields, place=row.place, until=row.until)
