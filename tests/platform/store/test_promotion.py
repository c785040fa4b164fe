"""Promotion gates: what each asks, what it says when it fails, and that all of them are asked."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Malformed, Refused
from govray.governance.attestation.execution import CodeFacts
from govray.governance.attestation.model_attestation import Attestation, Removal, Replay
from govray.governance.attestation.validation_result import ValidationResult
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import read, self_subject, statement_bytes
from govray.governance.record.entropy_profile import MonitorDecision
from govray.governance.record.incidents import Findings
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.trust.revocation_list import (
    Revocation,
    RevocationList,
)
from govray.platform.store.promotion_gates import (
    GATES,
    SCHEMA,
    GateEvidence,
    PromotionPolicy,
    failures,
    open_flags,
    read_promotion_policy,
    verify_promotion_policy,
)
from tests.support.gates import signed
from tests.support.tree import ROOT
from tests.support.world import AT, EXECUTION, World

SHIPPED = ROOT / "policies" / "promotion.yaml"
DIGEST = "sha256:" + 64 * "0"


def written(*gates: str, schema: str = SCHEMA) -> str:
    lines = "".join(f"    - {gate}\n" for gate in gates)
    return (
        f"schema: {schema}\nname: test\nversion: 1\nstages:\n  staging: []\n"
        f"  production:\n{lines or '    []'}"
    )


def failing(evidence: GateEvidence, *gates: str) -> list[tuple[str, str]]:
    policy = read_promotion_policy(written(*gates))
    return [(each.gate, each.where) for each in failures(policy.gates("production"), evidence)]


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> GateEvidence:
    """Of a deployment with four corpora, without monitor or replay; five records quarantined."""
    folder = World().deploy(tmp_path_factory.mktemp("world") / "model")
    data = (folder / "governance" / "attestation.dsse.json").read_bytes()
    attestation = read(Attestation, Envelope.parse(data)).document
    return GateEvidence(
        attestation, {"acme": 9, "alpha": 18, "beta": 12, "gamma": 11}, "selfAttested"
    )


def changed(evidence: GateEvidence, **fields: Any) -> GateEvidence:
    return replace(evidence, attestation=evidence.attestation.model_copy(update=fields))


def replayed(evidence: GateEvidence, corpus: str) -> Replay:
    attestation = evidence.attestation
    return Replay(
        corpus=corpus,
        party="operator",
        plan=DIGEST,
        files={"model.safetensors": DIGEST},
        environment=attestation.environment,
    )


def found(
    evidence: GateEvidence, *decided: tuple[str, str], measured: tuple[str, ...] = ("alpha",)
) -> Any:
    decisions = tuple(
        MonitorDecision(
            step=number, corpus=corpus, action=action, layers=("final_norm",),
            evidence=(DIGEST,), since=0, e=20.0,
        )
        for number, (corpus, action) in enumerate(decided)
    )  # fmt: skip
    findings = Findings(
        branches=(0,),
        decisions=decisions,
        measured=dict.fromkeys(measured, 4),
        measures=(),
        unmeasurable=(),
    )
    return changed(evidence, memorization=findings)


def test_a_level_is_asked_of_each_selected_corpus(evidence: GateEvidence) -> None:
    asked = "{{gate: level, at_least: {}, {}}}"
    assert failing(evidence, asked.format(1, "categories: [copyleft_limited, commercial]")) == []
    assert failing(evidence, asked.format(2, "categories: [copyleft_limited]")) == [
        ("level", "gamma")
    ]
    assert failing(evidence, asked.format(2, 'corpora: ["ga*", "ac*"]')) == [
        ("level", "acme"),
        ("level", "gamma"),
    ]
    # Both together: the corpora that are meant by both.
    both = asked.format(2, 'corpora: ["*"], categories: [commercial]')
    assert failing(evidence, both) == [("level", "acme")]
    assert failing(evidence, asked.format(3, 'corpora: ["no-such-*"]')) == []


def test_replayed_means_without_that_corpus(evidence: GateEvidence) -> None:
    gate = "{gate: replayed, corpora: [acme, gamma]}"
    assert failing(evidence, gate) == [("replayed", "acme"), ("replayed", "gamma")]
    one = changed(evidence, replays=(replayed(evidence, "acme"),))
    assert failing(one, gate) == [("replayed", "gamma")]


def test_a_flag_is_open_until_a_rollback_or_a_removal(evidence: GateEvidence) -> None:
    gate = "no_open_memorization_flag"
    assert failing(found(evidence, ("gamma", "flag")), gate) == [(gate, "gamma")]
    assert failing(found(evidence, ("gamma", "gate")), gate) == [(gate, "gamma")]
    assert failing(found(evidence, ("gamma", "flag"), ("gamma", "rollback")), gate) == []
    again = found(evidence, ("gamma", "rollback"), ("gamma", "flag"))
    assert open_flags(again.attestation) == {"gamma": 1}
    removals = (Removal(adapter="acme", removed="2026-11-11T00:00:00Z"),)
    flagged = found(evidence, ("acme", "flag"), ("gamma", "flag"))
    gone = changed(flagged, removals=removals)
    assert failing(gone, gate) == [(gate, "gamma")], "gamma is in the base layers"


def test_monitored_means_every_corpus_was_measured(evidence: GateEvidence) -> None:
    assert failing(evidence, "monitored") == [("monitored", evidence.attestation.run.id)]
    three = found(evidence, measured=("acme", "alpha", "beta"))
    assert failing(three, "monitored") == [("monitored", "gamma")]
    assert failing(found(evidence, measured=("acme", "alpha", "beta", "gamma")), "monitored") == []


def test_assurance_is_what_the_signatures_amounted_to(evidence: GateEvidence) -> None:
    gate = "{gate: assurance, one_of: [witnessed, replayChecked]}"
    assert failing(evidence, gate) == [("assurance", evidence.attestation.run.id)]
    assert failing(replace(evidence, assurance="replayChecked"), gate) == []


def test_execution_is_asked_by_origin_isolation_and_archive(evidence: GateEvidence) -> None:
    run = evidence.attestation.run.id
    reviewed, other = DIGEST, "sha256:" + 64 * "1"

    def told(gate: str, **code: Any) -> list[tuple[str, str]]:
        execution = EXECUTION.model_copy(
            update={
                "code": CodeFacts(**code),
                "isolation": "run" if code["origin"] == "deployment" else "machine",
            }
        )
        return failing(changed(evidence, execution=execution), gate)

    failed = [("execution", run)]
    own = "{gate: execution, origins: [deployment], isolation: [run]}"
    assert told(own, origin="deployment") == []
    assert told(own, origin="submitted", archive=reviewed) == failed * 2
    allowed = f'{{gate: execution, archives: ["{reviewed}"]}}'
    assert told(allowed, origin="submitted", archive=reviewed) == []
    assert told(allowed, origin="submitted", archive=other) == failed
    assert told(allowed, origin="submitted") == failed
    assert told(allowed, origin="deployment") == []


def test_a_metric_is_asked_of_validation_data(evidence: GateEvidence) -> None:
    asked = "{gate: validated, metric: validation/accuracy, at_least: 0.7, corpora: ['held-*']}"
    run = evidence.attestation.run.id

    def measured(value: float, *corpora: str, metric: str = "validation/accuracy") -> GateEvidence:
        on = dict.fromkeys(corpora, DIGEST) or None
        result = ValidationResult(metric=metric, goal="max", value=value, corpora=on)
        return changed(evidence, validation=result)

    assert failing(evidence, asked) == [("validated", run)]
    assert failing(measured(0.7, "held-out"), asked) == []
    assert failing(measured(0.6, "held-out"), asked) == [("validated", run)]
    assert failing(measured(0.9, "held-out", "easy"), asked) == [("validated", "easy")]
    assert failing(measured(0.9, "held-out", metric="f1"), asked) == [("validated", run)]
    # What a loop measured by itself, from data that no record names.
    assert failing(measured(0.9), asked) == [("validated", run)]
    low = "{gate: validated, metric: validation/loss, at_most: 2}"
    assert failing(measured(2.5, "a", metric="validation/loss"), low) == [("validated", run)]


@given(st.sets(st.sampled_from(sorted(GATES))), st.sampled_from(sorted(GATES)))
def test_a_further_gate_never_lets_more_through(
    evidence: GateEvidence, names: set[str], further: str
) -> None:
    forms = {
        "level": "{gate: level, at_least: 2, corpora: ['*']}",
        "replayed": "{gate: replayed, corpora: ['*']}",
        "quarantined": "{gate: quarantined, at_most: 0}",
        "assurance": "{gate: assurance, one_of: [witnessed]}",
        "execution": "{gate: execution, origins: [deployment]}",
        "validated": "{gate: validated, metric: loss, at_most: 1}",
    }
    gates = [forms.get(name, name) for name in sorted(names)]
    fewer = failing(evidence, *gates)
    more = failing(evidence, *gates, forms.get(further, further))
    assert more[: len(fewer)] == fewer


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ("nonsense", "'nonsense' is no gate"),
        ("3", "a gate without a name"),
        ("{at_least: 1}", "a gate without a name"),
        ("{gate: level, at_least: 1}", "of which corpora"),
        ("{gate: level, corpora: ['*']}", "missing field 'at_least'"),
        ("{gate: level, at_least: 0, corpora: ['*']}", "greater than or equal to 1"),
        ("{gate: level, at_least: 1, corpora: []}", "at least 1 item"),
        ("{gate: level, at_least: 1, categories: [free]}", "categories"),
        ("{gate: quarantined, at_most: 2}", "less than or equal to 1"),
        ("{gate: quarantined, at_most: 0.1, unless: never}", "unknown field 'unless'"),
        ("{gate: assurance, one_of: [certified]}", "one_of"),
        ("{gate: execution}", "asks for nothing"),
        ("{gate: execution, isolation: [vault]}", "isolation"),
        ("{gate: validated, metric: loss}", "write at_least"),
        ("{gate: monitored, corpora: ['*']}", "unknown field 'corpora'"),
    ],
)
def test_a_gate_that_is_not_known_exactly_is_an_error(gate: str, said: str) -> None:
    with pytest.raises(Malformed, match=said) as caught:
        read_promotion_policy(written("monitored", gate), name="gates.yaml")
    assert caught.value.where == "gates.yaml:8", "the line of that gate"


def test_the_signed_form_is_fixed() -> None:
    policy = read_promotion_policy(written("monitored", "{gate: execution, isolation: [run]}"))
    payload = statement_bytes(policy, [self_subject(policy.name, policy)])
    assert payload.decode() == GOLDEN
    assert PromotionPolicy.from_json(policy.to_json(), where="again") == policy


GOLDEN = (
    '{"_type":"https://in-toto.io/Statement/v1","predicate":{"name":"test","stages":{"production":'
    '[{"gate":"monitored"},{"gate":"execution","isolation":["run"]}],"staging":[]},"version":1},'
    '"predicateType":"https://govray.dev/promotion-policy/v1","subject":[{"digest":{"sha256":'
    '"26992b0bdd6b9a876ab91e2abca1423de4f7a3e816672e63c32b7c038a10db01"},"name":"test"}]}'
)


def test_revoked_gates_ask_nothing_any_more() -> None:
    world = World()
    data, where = signed(world, written("monitored")), "gates"
    digest = canonical_json.sha256(Envelope.parse(data).payload)
    entry = Revocation(since="2026-11-20T00:00:00Z", reason="too lax", policy=digest)
    listed = RevocationList(
        issuer="compliance", sequence=1, issued="2026-11-19T00:00:00Z", entries=(entry,)
    )
    anchor = TrustAnchor(world.root, (listed.seal(world.keys.compliance),))
    with pytest.raises(Refused, match="too lax"):
        verify_promotion_policy(anchor.load(at=AT), data, at=AT, where=where)
    before = AT - timedelta(seconds=1)
    found = verify_promotion_policy(anchor.load(at=before), data, at=before, where=where)
    assert found.digest == digest


def test_the_shipped_document_lets_a_sound_model_through(evidence: GateEvidence) -> None:
    policy = read_promotion_policy(SHIPPED.read_bytes(), name=SHIPPED.name)
    assert str(policy) == "promotion v1"
    for stage in ("staging", "production"):
        assert policy.gates(stage)
        assert failures(policy.gates(stage), found(evidence)) == ()
    # The stricter gates in its comment are gates.
    comment = SHIPPED.read_text().partition("# Stricter ones:\n")[2]
    gates = [line.removeprefix("#   - ") for line in comment.splitlines()]
    assert isinstance(read_promotion_policy(written(*gates)), PromotionPolicy)
    assert len(gates) == 5
