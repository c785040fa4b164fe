"""Pages of ledgers, and the entropy profiles that stand in one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import select
from sqlmodel import Session, col

from govray.errors import GovrayError
from govray.governance.formats import canonical_json
from govray.governance.record.entropy_profile import EntropyProfile
from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.access import CallerDep
from govray.platform.service.identity.pagination import PageDep
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes.ledgers import reader
from govray.platform.service.visible.visibility import (
    find_ledger,
    ledgers,
    reads_entries,
    whole_attestations,
)
from govray.platform.store.tables import Attestation, Ledger

MOST_ENTRIES = 20_000
"""A longer ledger is not read for one page."""

_KIND = b'"kind":"entropyProfile"'

_RUN: Any = Ledger.run

router = APIRouter()


@router.get("/ledgers")
def listing(
    request: Request, caller: CallerDep, session: SessionDep, page: PageDep
) -> HTMLResponse:
    rows, after = page.rows(session, select(Ledger).where(ledgers(caller)), [_RUN], [str])
    return render(request, caller, "ledgers.html", ledgers=rows, after=after)


@router.get("/ledgers/{run}")
def of_run(
    request: Request,
    run: Annotated[str, Path(max_length=128)],
    caller: CallerDep,
    session: SessionDep,
) -> HTMLResponse:
    row = find_ledger(session, caller, run)
    attested = session.execute(
        select(Attestation).where(col(Attestation.run) == run, whole_attestations(caller))
    ).scalars()
    return render(
        request,
        caller,
        "ledger.html",
        ledger=row,
        entries=reads_entries(session, caller, run),
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
        lines = (tiles.entry(index) for index in range(row.size))
        return tuple(
            EntropyProfile.from_json(canonical_json.parse_canonical(line))
            for line in lines
            if _KIND in line
        )
    except GovrayError:
        return ()
