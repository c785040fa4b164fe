"""The first page: what there is, and what to do where there is nothing."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from sqlalchemy import func, select
from sqlmodel import col

from govray.platform.service.identity.visit import Visit, VisitDep
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
def overview(visit: VisitDep) -> HTMLResponse:
    return render(
        visit,
        "overview.html",
        totals=_totals(visit),
        models=model_rows(visit)[0],
        experiments=experiments.latest(visit) if reads_runs(visit.caller) else None,
    )


def _totals(visit: Visit) -> list[tuple[str, int]]:
    counted = {
        "attested models": select(func.count())
        .select_from(Attestation)
        .where(attestations(visit.caller)),
        "ledgers": select(func.count()).select_from(Ledger).where(ledgers(visit.caller)),
    }
    if reads_corpora(visit.caller):
        counted["corpora"] = (
            select(func.count()).select_from(Corpus).where(own_corpora(visit.caller))
        )
    if reads_runs(visit.caller):
        counted["runs"] = select(func.count()).select_from(Trial).where(trials(visit.caller))
    if is_staff(visit.caller):
        counted["ledger entries"] = select(func.coalesce(func.sum(col(Ledger.size)), 0))
    return [(name, visit.session.execute(query).scalar_one()) for name, query in counted.items()]
