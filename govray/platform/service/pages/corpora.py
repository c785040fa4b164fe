"""Pages of corpora: for staff all of them, for a supplier its own."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse
from sqlalchemy import func, select
from sqlmodel import col

from govray.platform.service.identity.access import needs
from govray.platform.service.identity.audit_log import LOGGED
from govray.platform.service.identity.pagination import PageDep
from govray.platform.service.identity.visit import VisitDep
from govray.platform.service.pages.rendering import render
from govray.platform.service.pages.shared_queries import attestation_href, version_href
from govray.platform.service.routes.corpora import Use, signed_credentials, uses_of
from govray.platform.service.visible.visible_corpora import credentials, find_corpus, own_corpora
from govray.platform.service.visible.visible_corpora import uses as visible_uses
from govray.platform.store.tables import Corpus, CorpusUseRow, CredentialRow

router = APIRouter(dependencies=[needs("data")])


@router.get("/corpora")
def listing(
    visit: VisitDep, page: PageDep, named: Annotated[str, Query(max_length=128)] = ""
) -> HTMLResponse:
    statement = select(Corpus).where(own_corpora(visit.caller))
    if named:
        statement = statement.where(col(Corpus.name).icontains(named, autoescape=True))
    rows, after = page.rows(visit.session, statement, [Corpus.name])
    names = [row.name for row in rows]
    newest = {
        each.corpus: each
        for each in visit.session.execute(
            select(CredentialRow)
            .where(col(CredentialRow.corpus).in_(names), credentials(visit.caller))
            .order_by(col(CredentialRow.valid_from))
        ).scalars()
    }
    counted = visit.session.execute(
        select(col(CorpusUseRow.corpus), func.count())
        .where(
            col(CorpusUseRow.corpus).in_(names),
            col(CorpusUseRow.tokens) > 0,
            visible_uses(visit.caller),
        )
        .group_by(col(CorpusUseRow.corpus))
    )
    return render(
        visit,
        "corpora.html",
        corpora=[(row, newest.get(row.name)) for row in rows],
        used=dict(counted.all()),
        after=after,
        named=named,
    )


@router.get("/corpora/{corpus}")
def of_corpus(visit: VisitDep, corpus: Annotated[str, Path(max_length=128)]) -> HTMLResponse:
    row = find_corpus(visit.session, visit.caller, corpus)
    if row.sensitivity in LOGGED:
        visit.audit.read("corpus.read", corpus)
    return render(
        visit,
        "corpus.html",
        corpus=row,
        uses=[_shown(each) for each in uses_of(visit, corpus)[0]],
        credentials=signed_credentials(visit, corpus),
    )


def _shown(each: Use) -> dict[str, Any]:
    """What the page shows of a use; ``excluded`` are layer groups with their level."""
    return {
        "href": attestation_href(each.use.attestation),
        "model": each.name,
        "run": each.run,
        "versions": [
            (f"{v.model} {v.version}", version_href(v.model, v.version)) for v in each.versions
        ],
        "use": each.use,
        "groups": [cell.layer_group for cell in each.cells if cell.direct],
        "excluded": [
            (cell.layer_group, cell.level) for cell in each.cells if cell.level is not None
        ],
    }
