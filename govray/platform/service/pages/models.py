"""Pages of models: the listing, a registered name, the model itself, and promoting a version.

The gates are read and asked anew when the form of a promotion comes
(`govray.platform.service.routes.models.promote`): what the page showed decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, get_args

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse, Response
from sqlmodel import col, select

from govray.errors import GovrayError
from govray.governance.attestation.memorization_manifest import MemorizationManifest
from govray.governance.attestation.model_attestation import DISCLAIMER, AssuranceLevel
from govray.governance.policy.depth_policy import Policy
from govray.governance.policy.route import ADAPTER
from govray.governance.record.entropy_profile import EntropyProfile
from govray.governance.record.incidents import Findings
from govray.governance.submission.register_forms import Isolation
from govray.governance.trust.license import LICENSE_CATEGORIES
from govray.platform.service.http.edits import etag
from govray.platform.service.http.problems import Problem, not_valid
from govray.platform.service.identity.pagination import PageDep
from govray.platform.service.identity.rights import is_within
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.pages.charts import entropy_chart
from govray.platform.service.pages.charts.heatmap import FOLD_ABOVE, heat_map
from govray.platform.service.pages.entropy_profiles import entropy_profiles
from govray.platform.service.pages.form_fields import Fields, FormDep, checked, field, then
from govray.platform.service.pages.rendering import brief, count, render
from govray.platform.service.pages.shared_queries import (
    attestation_href,
    linked_corpora,
    model_rows,
    verdict_of,
    version_href,
    version_rows,
)
from govray.platform.service.routes import models as routes
from govray.platform.service.routes.memorization import audits_of, findings_of, own_findings
from govray.platform.service.routes.models import WRITES, StageRequest
from govray.platform.service.routes.version_search import AskedDep, find
from govray.platform.service.visible.lookup import DigestPath
from govray.platform.service.visible.visible_corpora import corpora_of
from govray.platform.service.visible.visible_models import (
    check_promotes,
    find_attestation,
    find_lineage,
    find_model,
    find_policy,
    find_version,
    policy_document,
    reads_entries,
)
from govray.platform.service.visible.visible_runs import runs
from govray.platform.store import registry, tables
from govray.platform.store.lineage import Lineage
from govray.platform.store.promotion_gates import failures
from govray.platform.store.registry import STAGES
from govray.platform.store.tables import AttestationRow, ModelVersion, TrustRootRow

ClosedSteps: TypeAlias = tuple[tuple[int, int], ...]

_Drawn: TypeAlias = tuple[str, tuple[float | None, ...], tuple[ClosedSteps, ...]]


@dataclass(frozen=True)
class DepthRow:
    """A profile over the model.

    Attributes:
        weights: By group: the largest of any phase, None where it gives no gradient.
        closed: By group: half-open ranges of steps whose phase gives none, where others do.
    """

    profile: str
    corpora: int
    weights: tuple[float | None, ...]
    closed: tuple[ClosedSteps, ...]
    adapters: tuple[str, ...]


def depth_rows(document: Lineage) -> tuple[tuple[str, ...], tuple[DepthRow, ...]]:
    """The base groups in model order, and a row for each resolved profile."""
    groups = tuple(each.group for each in document.groups if each.kind == "base")
    found: dict[_Drawn, tuple[int, set[str]]] = {}
    for row in document.corpora:
        cells = {cell.group: cell.weight for cell in row.cells}
        closed = {cell.group: cell.closed or () for cell in row.cells}
        key = (
            row.profile,
            tuple(cells.get(group) for group in groups),
            tuple(closed.get(group, ()) for group in groups),
        )
        number, adapters = found.get(key, (0, set()))
        adapters |= {
            name.removeprefix(ADAPTER)
            for name, weight in cells.items()
            if weight is not None and name.startswith(ADAPTER)
        }
        found[key] = number + 1, adapters
    rows = [
        DepthRow(profile, number, weights, closed, tuple(sorted(adapters)))
        for (profile, weights, closed), (number, adapters) in found.items()
    ]
    rows.sort(key=lambda row: (-sum(w or 0 for w in row.weights), row.profile))
    return groups, tuple(rows)


MOST_AUDITS = 5

router = APIRouter()

Rows = Annotated[str, Query(max_length=32)]
Named = Annotated[str, Query(max_length=128)]
Name = Annotated[str, Path(max_length=256)]


@router.get("/models")
def listing(visit: VisitDep, page: PageDep) -> HTMLResponse:
    models, after = model_rows(visit, page=page)
    return render(visit, "models.html", models=models, after=after)


@router.get("/versions")
def found(visit: VisitDep, page: PageDep, asked: AskedDep) -> HTMLResponse:
    listed = find(visit, page, asked)
    return render(
        visit,
        "versions.html",
        asked=asked,
        versions=listed.items,
        after=listed.next,
        stages=get_args(registry.Stage),
        levels=get_args(AssuranceLevel),
        isolations=get_args(Isolation),
        categories=LICENSE_CATEGORIES,
    )


@router.get("/models/{model}")
def name(visit: VisitDep, model: Name, page: PageDep) -> HTMLResponse:
    row = find_model(visit.session, visit.caller, model)
    models, after = version_rows(visit, model, page)
    return render(visit, "model_name.html", model=row, models=models, after=after)


@router.get("/models/{model}/{version}")
def of_version(
    visit: VisitDep, model: Name, version: Name, rows: Rows = "", named: Named = ""
) -> HTMLResponse:
    registered = find_version(visit.session, visit.caller, model, version)
    row = find_attestation(visit.session, visit.caller, registered.attestation)
    return _page(visit, row, registered, rows, named)


@router.get("/attestations/{digest}")
def of_attestation(
    visit: VisitDep, digest: DigestPath, rows: Rows = "", named: Named = ""
) -> HTMLResponse:
    row = find_attestation(visit.session, visit.caller, digest)
    return _page(visit, row, None, rows, named)


def _page(
    visit: Visit,
    row: tables.AttestationRow,
    version: tables.ModelVersion | None,
    rows: str,
    named: str,
) -> HTMLResponse:
    document = find_lineage(visit.session, visit.caller, row, ("attestation", row.digest))
    whole = document.scope == "whole"
    policy = (
        policy_document(find_policy(visit.session, visit.caller, row.policy)) if whole else None
    )
    findings = findings_of(row.envelope)
    found = [each.corpus for each in document.corpora]
    categories = sorted({each.license_category for each in document.corpora})
    profiles: tuple[EntropyProfile, ...] = ()
    # Entries of a ledger are for who reads the run, even of a public attestation.
    if (
        policy is not None
        and policy.memorization is not None
        and reads_entries(visit.session, visit.caller, row.run)
    ):
        profiles = entropy_profiles(visit.session, row.run)
    depth_groups, depth = depth_rows(document)
    of_run = select(tables.RunRow).where(col(tables.RunRow.id) == row.run, runs(visit.caller))
    indexed = visit.session.exec(of_run).first()
    own = corpora_of(visit.session, visit.caller, row.digest)
    audits = audits_of(visit.session, row.digest, own, most=MOST_AUDITS)
    return render(
        visit,
        "model.html",
        title=f"{version.model} {version.version}" if version else row.name,
        row=row if whole else None,
        version=version,
        stages=stages_after(visit, version),
        registers=_registers(visit, row, version),
        verdict=verdict_of(visit, row),
        document=document,
        whole=whole,
        staff=is_within(visit.session, visit.caller, row.digest),
        run=row.run if indexed else None,
        experiment=visit.session.get(tables.ExperimentRow, indexed.experiment) if indexed else None,
        attestations=[row] if whole else [],
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
        monitored=bool(policy and policy.memorization),
        profile=_charts(profiles, policy, findings),
        findings=findings if whole or findings is None else own_findings(findings, found),
        audits=audits,
        linked=linked_corpora(visit, _named(document, findings, audits)),
        disclaimer=DISCLAIMER,
    )


def _named(
    document: Lineage,
    findings: Findings | None,
    audits: Sequence[tuple[tables.MemorizationManifestRow, MemorizationManifest]],
) -> set[str]:
    named = {each.corpus for each in document.corpora}
    named |= {each.corpus for each in findings.decisions} if findings else set()
    return named.union(*({each.corpus for each in audit.corpora} for _, audit in audits))


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
) -> tuple[entropy_chart.Chart, ...]:
    if not profiles or policy is None or policy.memorization is None:
        return ()
    return entropy_chart.charts(profiles, policy.memorization, findings)


Stage = Literal["staging", "production", "archived"]


def stages_after(visit: Visit, version: ModelVersion | None) -> list[str]:
    """The stages that ``caller`` can move a version to, if any."""
    try:
        if version is None or not visit.caller.has("write"):
            return []
        check_promotes(visit.session, visit.caller, version.model)
    except Problem:
        return []
    return sorted(STAGES[version.stage], key=get_args(Stage).index)


def _registers(
    visit: Visit, row: tables.AttestationRow, version: ModelVersion | None
) -> str | None:
    """The page that registers the attestation, or changes the version, if the caller may."""
    try:
        if not visit.caller.has("write"):
            return None
        check_promotes(visit.session, visit.caller, version.model if version else "", row.digest)
    except Problem:
        return None
    if version is not None:
        return f"{version_href(version.model, version.version)}/edit"
    return f"{attestation_href(row.digest)}/register"


@router.get("/attestations/{digest}/register", dependencies=[WRITES])
def ask_name(visit: VisitDep, digest: DigestPath) -> HTMLResponse:
    row = find_attestation(visit.session, visit.caller, digest)
    check_promotes(visit.session, visit.caller, "", row.digest)
    back = attestation_href(row.digest)
    return _version_form(
        visit,
        None,
        title="Register it as a version",
        crumbs=[("Models", "/models"), (row.name, back)],
        lead=f"The attested model of the run {row.run}. It begins in stage none.",
        model=row.name,
        back=back,
    )


@router.post("/attestations/{digest}/register", dependencies=[WRITES])
def register(visit: VisitDep, digest: DigestPath, fields: FormDep) -> Response:
    row = find_attestation(visit.session, visit.caller, digest)
    asked = {"version": field(fields, "version"), "attestation": row.digest}
    new = checked(routes.NewVersion, asked | _annotations(fields))
    made = routes.register(visit, registry.check_name(field(fields, "model")), new)
    return then(version_href(made.model, made.version))


@router.get("/models/{model}/{version}/edit", dependencies=[WRITES])
def ask_annotations(visit: VisitDep, model: Name, version: Name) -> HTMLResponse:
    row = find_version(visit.session, visit.caller, model, version)
    check_promotes(visit.session, visit.caller, row.model)
    back = version_href(row.model, row.version)
    return _version_form(
        visit,
        row,
        title="Labels and notes",
        crumbs=[("Models", "/models"), (f"{row.model} {row.version}", back)],
        lead="What people find it by. Nothing else of a version changes.",
        back=back,
    )


@router.post("/models/{model}/{version}/edit", dependencies=[WRITES])
def annotate(visit: VisitDep, model: Name, version: Name, fields: FormDep) -> Response:
    row = find_version(visit.session, visit.caller, model, version)
    given = checked(routes.Annotations, _annotations(fields))
    routes.annotate(visit, row.model, row.version, given)
    return then(version_href(row.model, row.version))


def _version_form(visit: Visit, version: ModelVersion | None, **shown: Any) -> HTMLResponse:
    labels = version.labels.items() if version else ()
    return render(
        visit,
        "version_form.html",
        version=version,
        labels="\n".join(f"{name}={text}" for name, text in labels),
        notes=version.notes if version else "",
        shown=etag([version.labels, version.notes]) if version else "",
        longest=registry.LONGEST_NOTES,
        **shown,
    )


def _annotations(fields: Fields) -> dict[str, object]:
    """Labels and notes as a form has them. Raises 422: a line is no label, or repeats one."""
    labels: dict[str, str] = {}
    for line in filter(None, map(str.strip, fields.get("labels", "").split("\n"))):
        name, sign, text = map(str.strip, line.partition("="))
        if not sign or name in labels:
            raise not_valid("labels", f"{line[:80]!r} is not NAME=TEXT, or repeats a name")
        labels[name] = text
    return {"labels": labels, "notes": fields.get("notes", "")}


@router.get("/models/{model}/{version}/promote", dependencies=[WRITES])
def ask(
    visit: VisitDep, model: Name, version: Name, stage: Annotated[Stage, Query()]
) -> HTMLResponse:
    row = find_version(visit.session, visit.caller, model, version)
    check_promotes(visit.session, visit.caller, row.model)
    found, policy, trouble = _gates(visit, row, stage)
    return render(
        visit,
        "promote.html",
        version=row,
        stage=stage,
        follows=stage in STAGES[row.stage],
        answers=found,
        policy=policy,
        trouble=trouble,
    )


@router.post("/models/{model}/{version}/promote", dependencies=[WRITES])
def promote(visit: VisitDep, model: Name, version: Name, fields: FormDep) -> Response:
    wanted = next((each for each in get_args(Stage) if each == fields.get("stage")), None)
    if wanted is None:
        raise not_valid("stage", f"one of {', '.join(get_args(Stage))}")
    row = find_version(visit.session, visit.caller, model, version)
    routes.promote(visit, row.model, row.version, StageRequest(stage=wanted))
    return then(version_href(row.model, row.version))


def _gates(visit: Visit, row: ModelVersion, stage: Stage) -> tuple[list[dict[str, Any]], str, str]:
    """The gates before ``stage``, the policy's name, and why nobody can ask them. Each kind of gate
    comes once, with all that it asks, and where each thing failed."""
    session, state = visit.session, visit.request.app.state
    if stage == "archived":
        return [], "", ""
    try:
        policy = routes.promotion_policy(visit.request).document
        digest = session.get_one(AttestationRow, row.attestation).trust_root
        root = session.get_one(TrustRootRow, digest).name
        state.revocations.look().require(row.attestation, root)
        evidence = registry.evidence(session, row.attestation)
    except GovrayError as error:
        return [], "", f"{error.what}. {error.do or ''}".strip()
    found: dict[str, dict[str, Any]] = {}
    for gate in policy.gates(stage):
        asks = gate.model_dump(mode="json", exclude_none=True, exclude={"gate"})
        said = "; ".join(
            f"{key.replace('_', ' ')} {', '.join(value) if isinstance(value, list) else value}"
            for key, value in asks.items()
        )
        one = found.setdefault(gate.gate, {"gate": gate.gate, "asks": [], "failed": {}})
        one["asks"] += [said] if said else []
        for each in failures([gate], evidence):
            one["failed"].setdefault((each.what, each.do), []).append(each.where)
    return list(found.values()), str(policy), ""
