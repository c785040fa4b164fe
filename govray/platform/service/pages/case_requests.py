"""Pages for whoever asks whether a work was used: the form, and how the own case stands.

The address of a case's page has the requester's key in it. It is shown once, on the page that
answers the form. Whoever has the address sees the standing and the answer, and nothing else.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from fastapi.responses import HTMLResponse, Response

from govray.governance.attestation.case_answer import CaseAnswer
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import read
from govray.platform.service.acting.case_desk import DeskDep
from govray.platform.service.identity.visit import VisitDep
from govray.platform.service.pages.form_fields import checked, form_of
from govray.platform.service.pages.rendering import HEADERS, render
from govray.platform.service.routes.attestations import DSSE
from govray.platform.service.routes.cases import AskedCase, answer_bytes, receive, shown_case
from govray.platform.service.visible.visible_cases import CasePath
from govray.platform.store import cases
from govray.platform.store.cases import LONGEST_CONTACT
from govray.platform.store.tables import RightsCase

router = APIRouter()

Key = Annotated[str, Path(max_length=128)]

DOWNLOAD = "attachment; filename=answer.dsse.json"


@router.get("/ask")
def form(visit: VisitDep, desk: DeskDep) -> HTMLResponse:
    return render(
        visit,
        "ask.html",
        may_ask=not visit.caller.public or desk.settings.without_token,
        longest_contact=LONGEST_CONTACT,
        made=None,
    )


@router.post("/ask")
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


@router.get("/ask/{case}/{key}")
def standing(visit: VisitDep, case: CasePath, key: Key, _desk: DeskDep) -> HTMLResponse:
    row = shown_case(visit, case, key)
    cases.shown(visit.session, row, by=visit.by)
    page = render(visit, "asked.html", case=row, answer=answer_of(row), key=key)
    visit.session.commit()
    return page


@router.get("/ask/{case}/{key}/answer.dsse.json")
def download(visit: VisitDep, case: CasePath, key: Key, _desk: DeskDep) -> Response:
    return envelope(answer_bytes(visit, case, key))


def envelope(data: bytes) -> Response:
    return Response(data, media_type=DSSE, headers={**HEADERS, "Content-Disposition": DOWNLOAD})


def answer_of(row: RightsCase) -> CaseAnswer | None:
    """What the requester is told; None while nothing is."""
    if row.answer is None:
        return None
    return read(CaseAnswer, Envelope.parse(row.answer, where=row.id)).document
