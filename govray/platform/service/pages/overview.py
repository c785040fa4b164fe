"""The first page: what there is, and what to do where there is nothing."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import func, select
from sqlmodel import Session, col

from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.access import Caller, CallerDep
from govray.platform.service.pages import experiments
from govray.platform.service.pages.rendering import render
from govray.platform.service.pages.shared_queries import model_rows
from govray.platform.service.visible.visibility import (
    attestations,
    is_staff,
    ledgers,
    own_corpora,
    reads_corpora,
    reads_runs,
    trials,
)
from govray.platform.store.tables import Attestation, Corpus, Ledger, Trial

router = APIRouter()


@router.get("/")
def overview(request: Request, caller: CallerDep, session: SessionDep) -> HTMLResponse:
    return render(
        request,
        caller,
        "overview.html",
        totals=_totals(session, caller),
        models=model_rows(session, caller)[0],
        experiments=experiments.latest(session, caller) if reads_runs(caller) else None,
    )


def _totals(session: Session, caller: Caller) -> list[tuple[str, int]]:
    counted = {
        "attested models": select(func.count())
        .select_from(Attestation)
        .where(attestations(caller)),
        "ledgers": select(func.count()).select_from(Ledger).where(ledgers(caller)),
    }
    if reads_corpora(caller):
        counted["corpora"] = select(func.count()).select_from(Corpus).where(own_corpora(caller))
    if reads_runs(caller):
        counted["runs"] = select(func.count()).select_from(Trial).where(trials(caller))
    if is_staff(caller):
        counted["ledger entries"] = select(func.coalesce(func.sum(col(Ledger.size)), 0))
    return [(name, session.execute(query).scalar_one()) for name, query in counted.items()]
