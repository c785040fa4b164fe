"""Promoting a version from its page: what each gate says, then the change of stage.

The gates are read and asked anew when the form comes
(`govray.platform.service.routes.models.promote`): what the page showed decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlmodel import Session

from govray.errors import GovrayError
from govray.platform.service.http.problems import Problem, not_valid
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.pages.form_fields import FormDep, then
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes import models
from govray.platform.service.routes.models import WRITES, StageRequest
from govray.platform.service.visible.visible_models import check_promotes, find_version
from govray.platform.store import registry
from govray.platform.store.promotion_gates import FailedGate, failures
from govray.platform.store.registry import STAGES
from govray.platform.store.tables import Attestation, ModelVersion, TrustRoot

Stage = Literal["staging", "production", "archived"]

router = APIRouter(dependencies=[WRITES])

Name = Annotated[str, Path(max_length=256)]


@dataclass(frozen=True)
class GateAnswer:
    """What one gate says. ``asks``: its arguments, as the policy has them."""

    gate: str
    asks: str
    failed: tuple[FailedGate, ...]


def stages_after(visit: Visit, version: ModelVersion | None) -> list[str]:
    """The stages that ``caller`` can move a version to, if any."""
    try:
        if version is None or not visit.caller.has("write"):
            return []
        check_promotes(visit.session, visit.caller, version.model)
    except Problem:
        return []
    return sorted(STAGES[version.stage], key=get_args(Stage).index)


@router.get("/models/{model}/{version}/promote")
def ask(
    visit: VisitDep, model: Name, version: Name, stage: Annotated[Stage, Query()]
) -> HTMLResponse:
    row = find_version(visit.session, visit.caller, model, version)
    check_promotes(visit.session, visit.caller, row.model)
    found, policy, trouble = _answers(visit.request, visit.session, row, stage)
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


@router.post("/models/{model}/{version}/promote")
def promote(visit: VisitDep, model: Name, version: Name, fields: FormDep) -> Response:
    wanted = next((each for each in get_args(Stage) if each == fields.get("stage")), None)
    if wanted is None:
        raise not_valid("stage", f"one of {', '.join(get_args(Stage))}")
    row = find_version(visit.session, visit.caller, model, version)
    name, number = row.model, row.version
    models.promote(
        visit,
        name,
        number,
        StageRequest(stage=wanted),
    )
    there = f"/models/{quote(name, safe='')}/{quote(number)}"
    return then(there)


def _answers(
    request: Request, session: Session, row: ModelVersion, stage: Stage
) -> tuple[list[GateAnswer], str, str]:
    """What the gates before ``stage`` say, the policy's name, and why nobody can ask them."""
    if stage == "archived":
        return [], "", ""
    try:
        policy = models.promotion_policy(request).document
        digest = session.get_one(Attestation, row.attestation).trust_root
        root = session.get_one(TrustRoot, digest).name
        request.app.state.revocations.look().require(row.attestation, root)
        evidence = registry.evidence(session, row.attestation)
    except GovrayError as error:
        return [], "", f"{error.what}. {error.do or ''}".strip()
    found = []
    for gate in policy.gates(stage):
        asks = gate.model_dump(mode="json", exclude_none=True, exclude={"gate"})
        said = "; ".join(f"{key.replace('_', ' ')}: {_words(value)}" for key, value in asks.items())
        found.append(GateAnswer(gate.gate, said, failures([gate], evidence)))
    return found, str(policy), ""


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
