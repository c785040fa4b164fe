"""Pages of models: the listing, a registered name, and the model itself."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import select
from sqlmodel import Session, col

from govray.governance.attestation import DISCLAIMER
from govray.governance.bundle import WEIGHTS
from govray.governance.envelope import Envelope
from govray.governance.incidents import Findings
from govray.governance.memorization import EntropyProfile
from govray.governance.memorization_manifest import (
    CorpusEvidence,
    MemorizationManifest,
    Unchecked,
)
from govray.governance.policy import Policy
from govray.governance.statement import read
from govray.service.access import Caller, CallerDep
from govray.service.pages import entropy
from govray.service.pages.depth import depth_rows, rule_rows
from govray.service.pages.heatmap import FOLD_ABOVE, heat_map
from govray.service.pages.ledgers import entropy_profiles
from govray.service.pages.reading import (
    model_rows,
    readable_lineage,
    signed_policy,
    version_rows,
)
from govray.service.pages.rendering import brief, count, render
from govray.service.pages.steps import steps
from govray.service.pagination import PageDep
from govray.service.problems import not_found
from govray.service.readable import DigestPath, corpora_of, full_digest, is_staff
from govray.service.routes.memorization import findings_of, own_findings
from govray.service.session import SessionDep
from govray.store import tables
from govray.store.lineage import Lineage

router = APIRouter()

Rows = Annotated[str, Query(max_length=32)]
Named = Annotated[str, Query(max_length=128)]
Name = Annotated[str, Path(max_length=256)]


@router.get("/models")
def listing(
    request: Request, caller: CallerDep, session: SessionDep, page: PageDep
) -> HTMLResponse:
    models, after = model_rows(session, caller, page=page)
    return render(request, caller, "models.html", models=models, after=after)


@router.get("/models/{model}")
def name(request: Request, model: Name, caller: CallerDep, session: SessionDep) -> HTMLResponse:
    row = session.get(tables.Model, model)
    models = version_rows(session, caller, model)
    if row is None or not (models or is_staff(caller)):
        raise not_found("model", model, "See the list of models", hidden=row is not None)
    return render(request, caller, "model_name.html", model=row, models=models)


@router.get("/models/{model}/{version}")
def of_version(
    request: Request,
    model: Name,
    version: Name,
    caller: CallerDep,
    session: SessionDep,
    rows: Rows = "",
    named: Named = "",
) -> HTMLResponse:
    registered = session.get(tables.ModelVersion, (model, version))
    row = session.get(tables.Attestation, registered.attestation) if registered else None
    if row is None:
        raise not_found("model", f"{model} {version}", "See the list of models")
    return _page(request, caller, session, row, registered, rows, named)


@router.get("/attestations/{digest}")
def of_attestation(
    request: Request,
    digest: DigestPath,
    caller: CallerDep,
    session: SessionDep,
    rows: Rows = "",
    named: Named = "",
) -> HTMLResponse:
    row = session.get(tables.Attestation, full_digest(digest))
    if row is None:
        raise not_found("model", digest, "See the list of models")
    return _page(request, caller, session, row, None, rows, named)


def _page(
    request: Request,
    caller: Caller,
    session: Session,
    row: tables.Attestation,
    version: tables.ModelVersion | None,
    rows: str,
    named: str,
) -> HTMLResponse:
    document = readable_lineage(session, caller, row)
    whole = document.scope == "whole"
    policy = signed_policy(session, row.policy) if whole else None
    findings = findings_of(row.envelope)
    found = [each.corpus for each in document.corpora]
    categories = sorted({each.license_category for each in document.corpora})
    profiles: tuple[EntropyProfile, ...] = ()
    # Entries of a ledger are for staff, even of a public attestation.
    if is_staff(caller) and policy is not None and policy.memorization is not None:
        profiles = entropy_profiles(session, row.run)
    depth_groups, depth = depth_rows(document)
    return render(
        request,
        caller,
        "model.html",
        title=f"{version.model} {version.version}" if version else row.name,
        row=row if whole else None,
        version=version if whole else None,
        document=document,
        whole=whole,
        staff=is_staff(caller),
        totals=_totals(document),
        map=heat_map(
            document,
            category=rows if rows in categories else None,
            name=named,
            fold=False if rows == "all" else None,
        ),
        foldable=len(document.corpora) > FOLD_ABOVE,
        categories=categories if len(categories) > 1 else [],
        chosen=rows,
        named=named,
        depth_groups=depth_groups,
        depth=depth,
        rules=rule_rows(policy) if policy else (),
        steps=steps(),
        monitored=bool(policy and policy.memorization),
        profile=_charts(profiles, policy, findings),
        findings=findings if whole or findings is None else own_findings(findings, found),
        audits=_audits(
            session,
            row.digest,
            set(found) if is_staff(caller) else corpora_of(session, caller, row.digest),
        ),
        disclaimer=DISCLAIMER,
    )


def _totals(document: Lineage) -> list[tuple[str, str]]:
    read_corpora = [each for each in document.corpora if each.tokens]
    tokens = sum(each.tokens for each in document.corpora)
    found = [
        ("corpora that trained", count(len(read_corpora))),
        ("records read", count(sum(each.records for each in document.corpora))),
        ("tokens read", brief(tokens)),
    ]
    if document.scope == "whole":
        found.append(("ledger entries", count(document.ledger.size)))
        found.append(
            ("records in quarantine", count(sum(each.records for each in document.quarantine)))
        )
    return found


def _charts(
    profiles: tuple[EntropyProfile, ...], policy: Policy | None, findings: Findings | None
) -> tuple[entropy.Chart, ...]:
    if not profiles or policy is None or policy.memorization is None:
        return ()
    return entropy.charts(profiles, policy.memorization, findings)


@dataclass(frozen=True)
class Audit:
    """A memorization manifest of the model's weights, its rows as far as the caller may read."""

    made: str
    signer: str
    document: MemorizationManifest
    rows: tuple[CorpusEvidence, ...]
    unchecked: tuple[Unchecked, ...]


def _audits(session: Session, digest: str, corpora: Set[str]) -> list[Audit]:
    """Audits hold hashes of records: for staff, and of its own corpora for a supplier."""
    if not corpora:
        return []
    weights = select(col(tables.Subject.sha256)).where(
        col(tables.Subject.attestation) == digest, col(tables.Subject.name) == WEIGHTS
    )
    sha256 = session.execute(weights).scalar_one_or_none()
    if sha256 is None:
        return []
    rows = session.execute(
        select(tables.MemorizationManifest)
        .where(col(tables.MemorizationManifest.weights).in_([sha256, full_digest(sha256)]))
        .order_by(col(tables.MemorizationManifest.made).desc())
        .limit(5)
    ).scalars()
    return [_audit(row, corpora) for row in rows]


def _audit(row: tables.MemorizationManifest, corpora: Set[str]) -> Audit:
    document = read(MemorizationManifest, Envelope.parse(row.envelope)).document
    return Audit(
        made=row.made,
        signer=row.signer,
        document=document,
        rows=tuple(each for each in document.corpora if each.corpus in corpora),
        unchecked=tuple(
            each for each in document.unchecked if each.corpus is None or each.corpus in corpora
        ),
    )
