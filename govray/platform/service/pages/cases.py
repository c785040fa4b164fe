"""Pages of rights holders' cases: for whoever asks, and for staff, who take a case on.

The address of a requester's page has the key in it. It is shown once, on the page that answers the
form. A holder of the address sees the standing and the answer, and nothing else.
"""

from __future__ import annotations

from typing import Annotated, get_args

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select

from govray.governance.attestation.case_answer import CaseAnswer, Decision
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import read
from govray.platform.service.acting.case_desk import DeskDep
from govray.platform.service.identity.pagination import PageDep, filtered
from govray.platform.service.identity.rights import may
from govray.platform.service.identity.visit import VisitDep
from govray.platform.service.pages.form_fields import FormDep, checked, field, form_of, then
from govray.platform.service.pages.rendering import HEADERS, render
from govray.platform.service.routes import cases as routes
from govray.platform.service.routes.attestations import DSSE
from govray.platform.service.routes.cases import (
    READERS,
    AskedCase,
    CaseDecision,
    CasePath,
    NewLink,
    Released,
    answer_bytes,
    cases,
    find_case,
    receive,
    shown_case,
    staff_case,
)
from govray.platform.store import cases as store
from govray.platform.store.cases import LONGEST_CONTACT
from govray.platform.store.states import CaseState
from govray.platform.store.tables import RightsCase

router = APIRouter(dependencies=[READERS])
requests = APIRouter()
"""The pages of whoever asks."""

Key = Annotated[str, Path(max_length=128)]

DOWNLOAD = "attachment; filename=answer.dsse.json"


@requests.get("/ask")
def ask_form(visit: VisitDep, desk: DeskDep) -> HTMLResponse:
    return render(
        visit,
        "ask.html",
        may_ask=not visit.caller.public or desk.settings.without_token,
        longest_contact=LONGEST_CONTACT,
        made=None,
    )


@requests.post("/ask")
def ask(
    visit: VisitDep, fields: Annotated[dict[str, str], Depends(form_of)], desk: DeskDep
) -> HTMLResponse:
    sources = fields.get("sources", "").split()
    given = {
        "contact": fields.get("contact", ""),
        "model": fields.get("model", "").strip() or None,
        "text": fields.get("text") or None,
        "sources": sources or None,
    }
    made = receive(visit, checked(AskedCase, given), desk)
    return render(
        visit, "ask.html", status=201, may_ask=True, longest_contact=LONGEST_CONTACT, made=made
    )


@requests.get("/ask/{case}/{key}")
def standing(visit: VisitDep, case: CasePath, key: Key, _desk: DeskDep) -> HTMLResponse:
    row = shown_case(visit, case, key)
    store.shown(visit.session, row, by=visit.by)
    page = render(visit, "asked.html", case=row, answer=answer_of(row), key=key)
    visit.session.commit()
    return page


@requests.get("/ask/{case}/{key}/answer.dsse.json")
def download_by_key(visit: VisitDep, case: CasePath, key: Key, _desk: DeskDep) -> Response:
    return envelope(answer_bytes(visit, case, key))


def envelope(data: bytes) -> Response:
    return Response(data, media_type=DSSE, headers={**HEADERS, "Content-Disposition": DOWNLOAD})


def answer_of(row: RightsCase) -> CaseAnswer | None:
    """What the requester is told; None while nothing is."""
    if row.answer is None:
        return None
    return read(CaseAnswer, Envelope.parse(row.answer, where=row.id)).document


@router.get("/cases")
def listing(
    visit: VisitDep, _desk: DeskDep, page: PageDep, state: Annotated[str, Query(max_length=32)] = ""
) -> HTMLResponse:
    chosen = CaseState.__members__.get(state)
    statement = select(RightsCase).where(cases(visit.caller))
    rows, after = page.rows(
        visit.session,
        filtered(statement, (RightsCase.state, chosen)),
        [RightsCase.received, RightsCase.id],
        descending=True,
    )
    states = list(CaseState)
    return render(visit, "cases.html", cases=rows, after=after, states=states, chosen=chosen)


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
            step: may(visit.caller, "decide", None) and row.state in states
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
    return envelope(answer_bytes(visit, case, None))


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
