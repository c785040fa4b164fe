"""Pages of depth policies: which there are, and what one lets each class of data update."""

from __future__ import annotations

import re

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from sqlalchemy import select
from sqlmodel import col

from govray.governance.policy.depth_policy import Match, Policy, Profile, Rule
from govray.platform.service.identity.pagination import PageDep
from govray.platform.service.identity.visit import VisitDep
from govray.platform.service.pages.rendering import render
from govray.platform.service.pages.shared_queries import LATEST
from govray.platform.service.visible.lookup import DigestPath
from govray.platform.service.visible.visible_models import (
    find_policy,
    policies,
    policy_document,
    whole_attestations,
)
from govray.platform.store import tables

router = APIRouter()


@router.get("/policies")
def listing(visit: VisitDep, page: PageDep) -> HTMLResponse:
    p = tables.PolicyRow
    readable = select(p).where(policies(visit.caller))
    rows, after = page.rows(visit.session, readable, [p.name, p.version, p.digest])
    return render(visit, "policies.html", policies=rows, after=after)


@router.get("/policies/{digest}")
def of_policy(visit: VisitDep, digest: DigestPath) -> HTMLResponse:
    row = find_policy(visit.session, visit.caller, digest)
    document = policy_document(row)
    p, a = tables.PolicyRow, tables.AttestationRow
    of_name = select(p).where(col(p.name) == row.name, policies(visit.caller))
    under = select(a).where(col(a.policy) == row.digest, whole_attestations(visit.caller))
    return render(
        visit,
        "policy.html",
        policy=row,
        document=document,
        rules=_rules(document),
        versions=visit.session.scalars(of_name.order_by(col(p.version).desc())).all(),
        models=visit.session.scalars(under.order_by(col(a.finished).desc()).limit(LATEST)).all(),
    )


def _rules(policy: Policy) -> list[tuple[str, str, str, str, str]]:
    """Each rule: its name, what it matches, the profile, what this opens, and what a flag does."""
    return [
        (
            rule.name,
            matched(rule.match),
            rule.profile,
            _opened(policy.profiles[rule.profile]),
            _followed(policy, rule),
        )
        for rule in policy.rules
    ]


def matched(match: Match) -> str:
    """What a rule of a policy matches."""
    parts = [
        f"{re.sub('([A-Z])', lambda c: f' {c[1].lower()}', name)} {' or '.join(map(str, values))}"
        for name, values in match.to_json().items()
    ]
    return "; ".join(parts) or "everything"


def _opened(profile: Profile) -> str:
    """The layers that a profile gives gradient, and its adapter."""
    if profile.is_empty:
        return "nothing: its records are quarantined"
    parts = [_weights(profile.layers)] if any(profile.layers.values()) else []
    parts += [
        f"from step {phase.from_step:,} on {_weights(phase.layers) or 'no layer'}"
        for phase in profile.phases or ()
    ]
    if profile.adapter is not None:
        whose = "of each corpus" if profile.adapter == "{corpus}" else profile.adapter
        parts.append(f"an adapter {whose}, rank {profile.rank}")
    return "; ".join(parts)


def _weights(layers: dict[str, float]) -> str:
    return ", ".join(
        selector if weight == 1 else f"{selector} with weight {weight:g}"
        for selector, weight in layers.items()
        if weight
    )


def _followed(policy: Policy, rule: Rule) -> str:
    """What a flag does. By a rule that opens nothing, or is not watched, no class is measured."""
    monitoring = policy.memorization
    if monitoring is None or policy.profiles[rule.profile].is_empty:
        return "–"
    if not monitoring.watches([rule.name]):
        return "–"
    action = monitoring.actions.get(rule.name)
    if action is None:
        return "flag"
    return f"{action.action} to {action.fallback}" if action.fallback else action.action
