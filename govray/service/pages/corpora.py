"""Pages of corpora: for staff all of them, for a supplier its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import func, select
from sqlmodel import Session, col

from govray.governance.policy.route import ADAPTER
from govray.service.access import AuditDep, Caller, CallerDep, require
from govray.service.pages.rendering import render
from govray.service.pages.shared_queries import attestation_href, version_href
from govray.service.pagination import PageDep
from govray.service.session import SessionDep
from govray.service.visibility import find_corpus, is_staff, own_corpora
from govray.store.tables import Attestation, Corpus, CorpusUse, Coverage, Credential, ModelVersion

_NAME: Any = Corpus.name

router = APIRouter(
    dependencies=[Depends(require("admin", "engineer", "auditor", "supplier"))],
)


@dataclass(frozen=True)
class CorpusRow:
    """A corpus in the listing, by its newest credential."""

    name: str
    supplier: str
    license: str
    category: str
    sensitivity: str
    records: int | None
    models: int


@dataclass(frozen=True)
class Use:
    """What one model used of a corpus. ``excluded``: layer groups with their level.

    ``versions``: the registered ones, each with its page.
    """

    href: str
    model: str
    versions: tuple[tuple[str, str], ...]
    run: str
    records: int
    tokens: int
    steps: int
    first_step: int | None
    last_step: int | None
    groups: tuple[str, ...]
    excluded: tuple[tuple[str, int], ...]


@router.get("/corpora")
def listing(
    request: Request,
    caller: CallerDep,
    session: SessionDep,
    page: PageDep,
    named: Annotated[str, Query(max_length=128)] = "",
) -> HTMLResponse:
    statement = select(Corpus).where(own_corpora(caller))
    if named:
        statement = statement.where(col(Corpus.name).icontains(named, autoescape=True))
    keyed = page.keyset(statement, [_NAME], [str])
    rows, after = page.cut(session.execute(keyed).scalars().all(), [_NAME])
    corpora = _described(session, rows)
    return render(request, caller, "corpora.html", corpora=corpora, after=after, named=named)


def _described(session: Session, rows: Sequence[Corpus]) -> list[CorpusRow]:
    names = [row.name for row in rows]
    credentials = {
        each.corpus: each
        for each in session.execute(
            select(Credential)
            .where(col(Credential.corpus).in_(names))
            .order_by(col(Credential.valid_from))
        ).scalars()
    }
    counted = session.execute(
        select(col(CorpusUse.corpus), func.count())
        .where(col(CorpusUse.corpus).in_(names), col(CorpusUse.tokens) > 0)
        .group_by(col(CorpusUse.corpus))
    )
    used = {row[0]: row[1] for row in counted}
    found = []
    for row in rows:
        credential = credentials.get(row.name)
        found.append(
            CorpusRow(
                name=row.name,
                supplier=row.supplier,
                license=credential.license if credential else "",
                category=credential.category if credential else "unknown",
                sensitivity=row.sensitivity,
                records=credential.records if credential else None,
                models=used.get(row.name, 0),
            )
        )
    return found


@router.get("/corpora/{corpus}")
def of_corpus(
    request: Request,
    corpus: Annotated[str, Path(max_length=128)],
    caller: CallerDep,
    session: SessionDep,
    audit: AuditDep,
) -> HTMLResponse:
    row = find_corpus(session, caller, corpus)
    signed = select(Credential).where(col(Credential.corpus) == corpus)
    if not is_staff(caller):
        # What a former supplier signed is not the present one's.
        signed = signed.where(col(Credential.supplier) == caller.supplier)
    credentials = session.execute(signed.order_by(col(Credential.valid_from).desc())).scalars()
    if row.confidential:
        audit.read("corpus.read", corpus)
    return render(
        request,
        caller,
        "corpus.html",
        corpus=row,
        uses=_uses(session, caller, corpus),
        credentials=credentials.all(),
    )


def _uses(session: Session, caller: Caller, corpus: str) -> list[Use]:
    rows = session.execute(
        select(CorpusUse, col(Attestation.name), col(Attestation.run))
        .join(Attestation, col(Attestation.digest) == col(CorpusUse.attestation))
        .where(col(CorpusUse.corpus) == corpus)
        .order_by(col(Attestation.finished).desc())
        .limit(200)
    ).all()
    digests = [use.attestation for use, _, _ in rows]
    versions: dict[str, list[tuple[str, str]]] = {}
    for each in session.execute(
        select(ModelVersion)
        .where(col(ModelVersion.attestation).in_(digests))
        .order_by(col(ModelVersion.model), col(ModelVersion.version))
    ).scalars():
        named = f"{each.model} {each.version}", version_href(each.model, each.version)
        versions.setdefault(each.attestation, []).append(named)
    cells: dict[str, list[Coverage]] = {}
    for cell in session.execute(
        select(Coverage).where(
            col(Coverage.corpus) == corpus, col(Coverage.attestation).in_(digests)
        )
    ).scalars():
        # Another corpus's adapter bears its name.
        if cell.direct or is_staff(caller) or not cell.layer_group.startswith(ADAPTER):
            cells.setdefault(cell.attestation, []).append(cell)
    return [
        Use(
            href=attestation_href(use.attestation),
            model=name,
            versions=tuple(versions.get(use.attestation, ())),
            run=run,
            records=use.records,
            tokens=use.tokens,
            steps=use.steps,
            first_step=use.first_step,
            last_step=use.last_step,
            groups=tuple(c.layer_group for c in cells.get(use.attestation, ()) if c.direct),
            excluded=tuple(
                (c.layer_group, c.level)
                for c in cells.get(use.attestation, ())
                if c.level is not None
            ),
        )
        for use, name, run in rows
    ]
