"""Step 11: coverage, taint, exclusion levels and phases follow from the ledger and the routes."""

from __future__ import annotations

from govray.errors import Refused
from govray.governance.attestation import coverage
from govray.governance.attestation.model_attestation import (
    Attestation,
    exclusion_levels,
    group_taint,
)
from govray.governance.policy.corpus_routes import CorpusRoutes
from govray.governance.record.ledger import Ledger
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.prepared_records import RecordCounts


def check_coverage(
    attestation: Attestation,
    ledger: Ledger,
    manifest: Manifest,
    records: RecordCounts,
    routes: CorpusRoutes,
) -> None:
    """What the attestation states is what its ledger and routes give."""
    base, plan = attestation.base_groups, attestation.plan
    derived = coverage.coverage(ledger.steps, ledger.norms, routes, plan, manifest, records)
    computed = {(r.corpus, r.group): r for r in derived}
    stated = {(r.corpus, r.group): r for r in attestation.coverage}
    for place in sorted(computed.keys() | stated.keys()):
        if computed.get(place) != stated.get(place):
            raise Refused(
                "the coverage does not follow from the ledger", where=f"{place[0]} in {place[1]}"
            )
    if [(r.corpus, r.group) for r in attestation.coverage] != list(computed):
        raise Refused("entries are repeated or out of order", where="attestation coverage")
    taint = group_taint(routes, base, plan, attestation.domains, attestation.pretrained)
    for claimed, follows in zip(attestation.taint, taint, strict=False):
        if claimed != follows:
            raise Refused("it does not follow from the routes", where=f"taint of {claimed.group}")
    if len(attestation.taint) != len(taint):
        raise Refused("a layer group is missing or added", where="attestation taint")
    for group in sorted(attestation.pretrained.keys() - {t.group for t in taint}):
        raise Refused("the model has no such layer group", where=f"pretrained {group}")
    levels = exclusion_levels(
        routes, base, attestation.replays, attestation.removals, attestation.pretrained
    )
    for corpus in sorted(levels.keys() | attestation.levels.keys()):
        if levels.get(corpus) != attestation.levels.get(corpus):
            raise Refused("they do not follow from the evidence", where=f"levels of {corpus}")
    if (attestation.phase_exclusions or {}) != coverage.phase_exclusions(routes, plan.max_steps):
        raise Refused("they do not follow from the routes", where="attestation phaseExclusions")
