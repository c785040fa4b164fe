"""The first page, and whether a text was used, asked by its hash."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import func, select
from sqlmodel import col

from govray.platform.service.identity.access import needs
from govray.platform.service.identity.rights import everywhere, somewhere
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.pages import experiments
from govray.platform.service.pages.form_fields import form_of
from govray.platform.service.pages.rendering import render
from govray.platform.service.pages.shared_queries import model_rows
from govray.platform.service.routes.records import answer_of
from govray.platform.service.visible.visible_corpora import own_corpora
from govray.platform.service.visible.visible_models import attestations, ledgers
from govray.platform.service.visible.visible_runs import runs
from govray.platform.store.tables import AttestationRow, Corpus, LedgerRow, RunRow

router = APIRouter()


@router.get("/")
def overview(visit: VisitDep) -> HTMLResponse:
    return render(
        visit,
        "overview.html",
        totals=_totals(visit),
        models=model_rows(visit)[0],
        experiments=experiments.latest(visit) if somewhere(visit.caller, "view") else None,
    )


def _totals(visit: Visit) -> list[tuple[str, int]]:
    caller, counting = visit.caller, select(func.count())
    counted = {
        "attested models": counting.select_from(AttestationRow).where(attestations(caller)),
        "ledgers": counting.select_from(LedgerRow).where(ledgers(caller)),
    }
    if somewhere(caller, "data"):
        counted["corpora"] = counting.select_from(Corpus).where(own_corpora(caller))
    if somewhere(caller, "view"):
        counted["runs"] = counting.select_from(RunRow).where(runs(caller))
    if everywhere(caller, "view"):
        counted["ledger entries"] = select(func.coalesce(func.sum(col(LedgerRow.size)), 0))
    return [(name, visit.session.execute(query).scalar_one()) for name, query in counted.items()]


# The page that asks whether a text was used, by its hash.
#
# A script hashes the text in the browser and the form sends the hash alone (`static/records.js`).
# Without it the form sends the text in the body of a request, where no log has it. It is hashed,
# and neither stored nor logged. A form is taken from our own pages only.


@router.get("/search")
def form(visit: VisitDep) -> HTMLResponse:
    return render(
        visit, "search.html", reads=somewhere(visit.caller, "data"), answer=None, missing=False
    )


async def _hashes(request: Request) -> list[str]:
    """The hashes in the form, of one text in some forms of Unicode, or that of its text."""
    given = await form_of(request)
    if text := given.get("text", "").encode():
        return [hashlib.sha256(text).hexdigest()]
    return given.get("sha256", "").split(",")


@router.post("/search", dependencies=[needs("data")])
def search(visit: VisitDep, digests: Annotated[list[str], Depends(_hashes)]) -> HTMLResponse:
    asked = len(digests) <= 3 and all(re.fullmatch("[0-9a-f]{64}", each) for each in digests)
    answers = [answer_of(visit, each, 0) for each in digests if asked]
    answer = next((each for each in answers if each.found), answers[0] if answers else None)
    status = 200 if asked else 422
    return render(visit, "search.html", status=status, reads=True, answer=answer, missing=not asked)
