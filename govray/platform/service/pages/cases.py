"""Pages of rights holders' cases for staff: the list, a case, and forms that take it on."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select
from sqlmodel import col

from govray.governance.attestation.case_answer import Decision
from govray.platform.service.acting.case_desk import DeskDep
from govray.platform.service.identity.pagination import PageDep
from govray.platform.service.identity.visit import VisitDep
from govray.platform.service.pages.case_requests import envelope
from govray.platform.service.pages.form_fields import FormDep, checked, field, then
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes import cases as routes
from govray.platform.service.routes.cases import (
    READERS,
    CaseDecision,
    NewLink,
    Released,
    staff_case,
)
from govray.platform.service.visible.visible_cases import CasePath, cases, decides_cases, find_case
from govray.platform.store import cases as store
from govray.platform.store.states import CaseState
from govray.platform.store.tables import RightsCase

router = APIRouter(dependencies=[READERS])

_COLUMNS: list[Any] = [RightsCase.received, RightsCase.id]


@router.get("/cases")
def listing(
    visit: VisitDep, _desk: DeskDep, page: PageDep, state: Annotated[str, Query(max_length=32)] = ""
) -> HTMLResponse:
    statement = select(RightsCase).where(cases(visit.caller))
    chosen = next((each for each in CaseState if each == state), None)
    if chosen is not None:
        statement = statement.where(col(RightsCase.state) == chosen)
    rows, after = page.rows(visit.session, statement, _COLUMNS, [str, str], descending=True)
    return render(
        visit,
        "cases.html",
        cases=rows,
        after=after,
        states=list(CaseState),
        chosen=chosen,
    )


@router.get("/cases/{case}")
def of_case(visit: VisitDep, case: CasePath, _desk: DeskDep) -> HTMLResponse:
    row = find_case(visit.session, visit.caller, case)
    store.shown(visit.session, row, by=visit.by)
    result = store.search_of(row)
    named = sorted({each.corpus for each in result.findings if each.corpus}) if result else []
    page = render(
        visit,
        "case.html",
        case=row,
        told=staff_case(visit.session, row),
        result=result,
        corpora=named,
        steps={
            step: decides_cases(visit.caller) and row.state in states
            for step, states in store.NEXT.items()
        },
        decisions=[each for each in get_args(Decision) if (each == "nothing_found") != bool(named)]
        if result
        else [],
    )
    visit.session.commit()
    return page


@router.get("/cases/{case}/answer.dsse.json")
def download(visit: VisitDep, case: CasePath, _desk: DeskDep) -> Response:
    return envelope(routes.answer_bytes(visit, case, None))


@router.post("/cases/{case}/search")
def search(visit: VisitDep, case: CasePath, _fields: FormDep, desk: DeskDep) -> Response:
    routes.search(visit, case, desk)
    return then(f"/cases/{case}")


@router.post("/cases/{case}/answer")
def answer(visit: VisitDep, case: CasePath, fields: FormDep, desk: DeskDep) -> Response:
    release = [name.removeprefix("release:") for name in fields if name.startswith("release:")]
    routes.give_answer(visit, case, Released(release=release), desk)
    return then(f"/cases/{case}")


@router.post("/cases/{case}/decide")
def decide(visit: VisitDep, case: CasePath, fields: FormDep, desk: DeskDep) -> Response:
    given = {name: field(fields, name) for name in ("decision", "reason")}
    routes.decide(visit, case, checked(CaseDecision, given), desk)
    return then(f"/cases/{case}")


@router.post("/cases/{case}/link")
def link(visit: VisitDep, case: CasePath, fields: FormDep, desk: DeskDep) -> Response:
    new = checked(NewLink, {name: field(fields, name) for name in ("model", "version")})
    routes.link(visit, case, new, desk)
    return then(f"/cases/{case}")
