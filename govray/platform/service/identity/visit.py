"""A request as a route has it: who sent it, when, and the store as it is for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from fastapi import Depends, Request
from sqlmodel import Session

from govray.governance.formats.document import format_time
from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.access import CallerDep
from govray.platform.service.identity.audit_log import Audit
from govray.platform.service.identity.caller import Caller
from govray.platform.store.audit_log import ChangedBy


@dataclass(frozen=True)
class Visit:
    """One request to one route."""

    request: Request
    caller: Caller
    session: Session

    @cached_property
    def at(self) -> str:
        """Its time, as the store writes times."""
        return format_time(self.request.app.state.clock())

    @property
    def by(self) -> ChangedBy:
        """Who changes something, for the audit log."""
        return ChangedBy(user=self.caller.name, at=self.at, token=self.caller.token)

    @property
    def audit(self) -> Audit:
        """What writes entries of what was read or changed."""
        return Audit(self.request.app.state.engine, self.caller)


async def _visit(request: Request, caller: CallerDep, session: SessionDep) -> Visit:
    return Visit(request, caller, session)


VisitDep = Annotated[Visit, Depends(_visit)]
"""The `Visit` of this request. A token that is not accepted is told before a body is read."""
