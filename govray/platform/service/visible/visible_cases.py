"""What a caller may read and decide of rights holders' cases.

A case has somebody's contact, and the names of corpora that its answer withholds. Admins, data
stewards and auditors of the organisation read all cases. An auditor who is bound to a model reads
the cases about that model, and one who is bound to a case reads that. Admins and data stewards of
the organisation decide. The requester reads its answer by its own key: that is not here.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from sqlalchemy import ColumnElement, false, or_, true
from sqlmodel import col

from govray.platform.service.http.problems import not_allowed
from govray.platform.service.identity.access import require
from govray.platform.service.identity.caller import Caller
from govray.platform.service.identity.roles import places
from govray.platform.service.visible.lookup import Finder
from govray.platform.service.visible.reach import everywhere
from govray.platform.store.tables import RightsCase

CasePath = Annotated[
    str,
    Path(
        pattern="^c-[0-9a-f]{12}$",
        description="The case's number.",
        examples=["c-0123456789ab"],
    ),
]


def reads_cases(caller: Caller) -> bool:
    """Whether there may be cases that the caller reads."""
    found = places(caller, "case")
    bound = any(found[reach] for reach in ("organisation", "model", "case"))
    return everywhere(caller, "case") or bound


def decides_cases(caller: Caller) -> bool:
    """Whether the caller searches, answers and decides, with a token that is good for it."""
    found = everywhere(caller, "decide") or bool(places(caller, "decide")["organisation"])
    return found and caller.has("write")


CASE_READERS = require("admin", "auditor", bound=reads_cases)


def cases(caller: Caller) -> ColumnElement[bool]:
    """Condition on `RightsCase`: those that the caller may read."""
    found = places(caller, "case")
    if everywhere(caller, "case") or found["organisation"]:
        return true()
    conditions: list[ColumnElement[bool]] = [false()]
    if found["case"]:
        conditions.append(col(RightsCase.id).in_(sorted(found["case"])))
    if found["model"]:
        conditions.append(col(RightsCase.model).in_(sorted(found["model"])))
    return or_(*conditions)


find_case = Finder("case", RightsCase, "id", cases, "See the list of cases")


def demand_decides(caller: Caller) -> None:
    """Return if the caller may decide on cases that it reads."""
    if not decides_cases(caller):
        raise not_allowed(
            "Cases are decided by admins and data stewards of the organisation",
            "Use a token of one, with the scope write",
        )
