"""Pages of rights holders' cases for staff: the list, a case, and forms that take it on."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select
from sqlmodel import col

from govray.governance.attestation.case_answer import Decision
from govray.platform.service.acting.case_desk import DeskDep
from govray.platform.service.acting.project_rules import NowDep, changed_by
from govray.platform.service.http.checked_fields import checked
from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.access import AuditDep, CallerDep
from govray.platform.service.identity.pagination import PageDep
from govray.platform.service.pages.case_requests import envelope
from govray.platform.service.pages.form_fields import FormDep, field, then
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes import cases as routes
from govray.platform.service.routes.cases import READERS, CaseDecision, NewLink, staff_case
from govray.platform.service.visible.visible_cases import CasePath, cases, decides_cases, find_case
from govray.platform.store import cases as store
from govray.platform.store.states import CaseState
from govray.platform.store.tables import RightsCase

router = APIRouter(dependencies=[READERS])

_COLUMNS: list[Any] = [RightsCase.received, RightsCase.id]


@router.get("/cases")
def listing(
    request: Request,
    _desk: DeskDep,
    caller: CallerDep,
    session: SessionDep,
    page: PageDep,
    state: Annotated[str, Query(max_length=32)] = "",
) -> HTMLResponse:
    statement = select(RightsCase).where(cases(caller))
    chosen = next((each for each in CaseState if each == state), None)
    if chosen is not None:
        statement = statement.where(col(RightsCase.state) == chosen)
    rows, after = page.rows(session, statement, _COLUMNS, [str, str], descending=True)
    return render(
        request,
        caller,
        "cases.html",
        cases=rows,
        after=after,
        states=list(CaseState),
        chosen=chosen,
    )


@router.get("/cases/{case}")
def of_case(
    request: Request,
    case: CasePath,
    _desk: DeskDep,
    caller: CallerDep,
    session: SessionDep,
    at: NowDep,
) -> HTMLResponse:
    row = find_case(session, caller, case)
    store.shown(session, row, by=changed_by(caller, at))
    result = store.search_of(row)
    named = sorted({each.corpus for each in result.findings if each.corpus}) if result else []
    page = render(
        request,
        caller,
        "case.html",
        case=row,
        told=staff_case(session, row),
        result=result,
        corpora=named,
        steps={
            step: decides_cases(caller) and row.state in states
            for step, states in store.NEXT.items()
        },
        decisions=[each for each in get_args(Decision) if (each == "nothing_found") != bool(named)]
        if result
        else [],
    )
    session.commit()
    return page


@router.get("/cases/{case}/answer.dsse.json")
def download(
    case: CasePath, _desk: DeskDep, caller: CallerDep, session: SessionDep, at: NowDep
) -> Response:
    return envelope(routes.answer_bytes(session, caller, case, None, at))


@router.post("/cases/{case}/search")
def search(
    case: CasePath,
    _fields: FormDep,
    desk: DeskDep,
    caller: CallerDep,
    session: SessionDep,
    audit: AuditDep,
    at: NowDep,
) -> Response:
    routes.searched(session, caller, audit, desk, case, at)
    return then(f"/cases/{case}")


@router.post("/cases/{case}/answer")
def answer(
    request: Request,
    case: CasePath,
    fields: FormDep,
    desk: DeskDep,
    caller: CallerDep,
    session: SessionDep,
    at: NowDep,
) -> Response:
    release = [name.removeprefix("release:") for name in fields if name.startswith("release:")]
    routes.answered(session, caller, request, desk, case, release, at)
    return then(f"/cases/{case}")


@router.post("/cases/{case}/decide")
def decide(
    request: Request,
    case: CasePath,
    fields: FormDep,
    desk: DeskDep,
    caller: CallerDep,
    session: SessionDep,
    at: NowDep,
) -> Response:
    given = {name: field(fields, name) for name in ("decision", "reason")}
    routes.decided(session, caller, request, desk, case, checked(CaseDecision, given), at)
    return then(f"/cases/{case}")


@router.post("/cases/{case}/link")
def link(
    request: Request,
    case: CasePath,
    fields: FormDep,
    desk: DeskDep,
    caller: CallerDep,
    session: SessionDep,
    at: NowDep,
) -> Response:
    new = checked(NewLink, {name: field(fields, name) for name in ("model", "version")})
    routes.linked(session, caller, request, desk, case, new.model, new.version, at)
    return then(f"/cases/{case}")
