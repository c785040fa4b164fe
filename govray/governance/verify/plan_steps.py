"""Steps 8, 9 and 11: routes, plan and coverage follow from what was verified before them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from govray.errors import Refused
from govray.governance.attestation import coverage, model_folder
from govray.governance.attestation.model_attestation import (
    Attestation,
    admitted_corpora,
    exclusion_levels,
    frozen_domains,
    group_taint,
    run_adapters,
)
from govray.governance.attestation.model_folder import TensorFile
from govray.governance.attestation.selection_taint import check_selection
from govray.governance.attestation.validation_result import check_held_out
from govray.governance.policy.corpus_routes import CorpusRoutes
from govray.governance.policy.credential import Credential
from govray.governance.policy.depth_policy import Policy
from govray.governance.record.ledger import Ledger
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.prepared_records import RecordCounts
from govray.governance.trust.trust_state import Verified


def check_routes(
    weights: Mapping[str, TensorFile],
    attestation: Attestation,
    policy: Policy,
    credentials: Mapping[str, Verified[Credential]],
) -> CorpusRoutes:
    """Step 8: routes follow from policy and credentials, tensors are those of the layer groups.

    Returns:
        Corpus → route, and the fallbacks.
    """
    base = attestation.base_groups
    corpora, routes = admitted_corpora(policy, credentials, base, attestation.plan.max_steps)
    for stated, computed in zip_longest(attestation.corpora, corpora):  # one may be stated twice
        if stated != computed:
            raise Refused(
                "class, rules or route do not follow from policy and credential",
                where=(stated or computed).corpus,
            )
    if attestation.domains != frozen_domains(routes, base):
        raise Refused("they do not follow from the routes", where="attestation domains")
    parameters = [p for g in attestation.groups for p in g.parameters]
    expected = [*parameters, *attestation.buffers]
    if len(set(base)) != len(base) or len(set(expected)) != len(expected):
        raise Refused("a group or a tensor is named twice", where="attestation groups")
    for name in (model_folder.WEIGHTS, model_folder.EMA):
        if name != model_folder.EMA or name in weights:
            _check_tensors(weights, name, frozenset(expected))
    tensors = {adapter.name: adapter.tensors for adapter in attestation.adapters}
    named = tensors.keys()
    if attestation.adapters != run_adapters(routes, tensors):
        raise Refused("they do not follow from the routes", where="attestation adapters")
    gone = {removal.adapter for removal in attestation.removals}
    if len(gone) != len(attestation.removals) or not gone <= named:
        raise Refused("an adapter unknown, or removed twice", where="attestation removals")
    for name in sorted(named - gone):
        _check_tensors(weights, model_folder.adapter_files(name)[1], frozenset(tensors[name]))
    return routes


def _check_tensors(weights: Mapping[str, TensorFile], name: str, expected: frozenset[str]) -> None:
    found = weights[name].tensor_names(name)
    for tensor in sorted(found - expected):
        raise Refused(f"the tensor {tensor!r} is in no attested layer group", where=name)
    for tensor in sorted(expected - found):
        raise Refused(f"the tensor {tensor!r} is missing", where=name)


def check_plan(attestation: Attestation, manifest: Manifest, routes: CorpusRoutes) -> None:
    """Step 9: streams follow from routes and manifest, and a search depends on what was read."""
    plan = attestation.plan
    if plan.manifest != attestation.manifest or plan.context != manifest.context:
        raise Refused("the plan is over another manifest", where="attestation plan")
    if plan.corpora != tuple(sorted(routes)):
        raise Refused("the plan reads other corpora than were admitted", where="attestation plan")
    profiles = {c.corpus: c.profile for c in attestation.corpora}
    for stream in plan.streams:
        if stream.profile != min(profiles[member.corpus] for member in stream.corpora):
            raise Refused("the stream has another profile than its corpora", where=stream.id)
        for member in stream.corpora:
            if routes[member.corpus].digest != stream.id:
                raise Refused("the corpus is in a stream of another route", where=member.corpus)
            if manifest.train_rows(member.corpus) != member.rows:
                raise Refused(
                    f"the plan has {member.rows} rows, the manifest "
                    f"{manifest.train_rows(member.corpus)}",
                    where=member.corpus,
                )
    check_selection(attestation.selection_taint or (), plan)
    check_held_out(attestation.validation, plan.corpora)


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
    adapters = attestation.adapters
    if {each.name for each in adapters} != coverage.covered_adapters(derived):
        raise Refused("they are not those that its steps trained", where="attestation adapters")
    taint = group_taint(routes, base, adapters, plan, attestation.domains, attestation.pretrained)
    for claimed, follows in zip(attestation.taint, taint, strict=False):
        if claimed != follows:
            raise Refused("it does not follow from the routes", where=f"taint of {claimed.group}")
    if len(attestation.taint) != len(taint):
        raise Refused("a layer group is missing or added", where="attestation taint")
    for group in sorted(attestation.pretrained.keys() - {t.group for t in taint}):
        raise Refused("the model has no such layer group", where=f"pretrained {group}")
    if attestation.run.earlier_code and attestation.replays:
        raise Refused(
            "the run went on under other code, and no replay is of all its steps",
            where="attestation replays",
        )
    levels = exclusion_levels(
        routes, base, adapters, attestation.replays, attestation.removals, attestation.pretrained
    )
    for corpus in sorted(levels.keys() | attestation.levels.keys()):
        if levels.get(corpus) != attestation.levels.get(corpus):
            raise Refused("they do not follow from the evidence", where=f"levels of {corpus}")
    if (attestation.phase_exclusions or {}) != coverage.phase_exclusions(routes, plan.max_steps):
        raise Refused("they do not follow from the routes", where="attestation phaseExclusions")
