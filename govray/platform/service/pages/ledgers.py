"""Pages of ledgers, and the entropy profiles that stand in one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import HTMLResponse
from sqlalchemy import select
from sqlmodel import Session, col

from govray.errors import GovrayError
from govray.governance.formats import canonical_json
from govray.governance.record.entropy_profile import EntropyProfile
from govray.platform.service.identity.pagination import PageDep
from govray.platform.service.identity.visit import VisitDep
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes.ledgers import reader
from govray.platform.service.visible.visible_models import (
    find_ledger,
    ledgers,
    reads_entries,
    whole_attestations,
)
from govray.platform.store.tables import Attestation, Ledger

MOST_ENTRIES = 20_000
"""A longer ledger is not read for one page."""

_KIND = b'"kind":"entropyProfile"'

router = APIRouter()


@router.get("/ledgers")
def listing(visit: VisitDep, page: PageDep) -> HTMLResponse:
    readable = select(Ledger).where(ledgers(visit.caller))
    rows, after = page.rows(visit.session, readable, [Ledger.run])
    return render(visit, "ledgers.html", ledgers=rows, after=after)


@router.get("/ledgers/{run}")
def of_run(visit: VisitDep, run: Annotated[str, Path(max_length=128)]) -> HTMLResponse:
    row = find_ledger(visit.session, visit.caller, run)
    attested = visit.session.execute(
        select(Attestation).where(col(Attestation.run) == run, whole_attestations(visit.caller))
    ).scalars()
    return render(
        visit,
        "ledger.html",
        ledger=row,
        entries=reads_entries(visit.session, visit.caller, run),
        checkpoint=row.checkpoint.decode("utf-8", "replace"),
        attestation=attested.first(),
    )


def entropy_profiles(session: Session, run: str) -> tuple[EntropyProfile, ...]:
    """The profiles in a run's ledger, from its tiles, each checked against the signed root. Empty
    where the ledger is longer than `MOST_ENTRIES` or its tiles are not within reach."""
    row = session.get(Ledger, run)
    if row is None or not row.tiles or row.size > MOST_ENTRIES:
        return ()
    tiles = reader(row)
    try:
        return tuple(
            EntropyProfile.from_json(canonical_json.parse_canonical(line))
            for line in tiles.entries(lambda line: _KIND in line)
        )
    except GovrayError:
        return ()
