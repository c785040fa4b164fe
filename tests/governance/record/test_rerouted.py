"""Gates that send a corpus to a fallback: what a ledger then holds, and what a verifier refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import VerificationFailed
from govray.governance.attestation import model_attestation as attesting
from govray.governance.policy.corpus_routes import Fallback
from govray.governance.policy.route import Route
from govray.governance.record.gates import Gate, changed_routes
from govray.governance.record.ledger import AnyLeaf, GradientNorms, Leaf
from tests.support.monitored_world import SECTION, Monitored, from_step, verified
from tests.support.row_by_row import corpus_counts
from tests.support.world import POLICY

PROFILES = """  narrow: {layers: {"blocks[0.5:]": 0.5, head: 1}, adapter: "{corpus}", rank: 2}
  narrower: {layers: {head: 0.5}}
rules:
"""
TEXT = POLICY.replace("rules:\n", PROFILES) + SECTION.replace("nothing}", "narrow}")
GATED_AT = 10  # probes follow steps 1, 3, …: those of 7 and 9 exceed


def rerouting(corpus: str = "alpha", first: int = 6) -> Monitored:
    return Monitored(deviations=from_step(corpus, first)).under(TEXT)


def test_the_rows_are_read_on_and_train_the_fallback(tmp_path: Path) -> None:
    found = verified(world := rerouting(), world.run(tmp_path))
    [gate] = found.gates
    assert (gate.corpus, gate.step, gate.fallback) == ("alpha", GATED_AT, "narrow")
    [decision] = found.attestation.memorization.decisions
    assert (decision.action, decision.fallback) == ("gate", "narrow")
    route = found.routes.fallbacks["alpha"].route
    assert route == Route({"block.1": 0.5, "head": 1.0}, "alpha", 2)
    for leaf in found.ledger.steps:
        counts = corpus_counts(found.attestation.plan, found.manifest.document, leaf.streams)
        assert leaf.corpora.keys() == counts.keys()  # nothing is left out
        if "alpha" in leaf.corpora:
            later = leaf.step >= GATED_AT
            assert leaf.corpora["alpha"].route == (route.digest if later else None)
    assert found.coverage["alpha", "embedding"].steps == sum(
        "alpha" in leaf.corpora for leaf in found.ledger.steps if leaf.step < GATED_AT
    )


def test_coverage_is_a_recount_by_the_route_taken(tmp_path: Path) -> None:
    found = verified(world := rerouting(), world.run(tmp_path))
    plan, manifest = found.attestation.plan, found.manifest.document
    own = found.routes["alpha"]
    tokens: dict[str, int] = {}
    weighted: dict[str, Decimal] = {}
    for leaf in found.ledger.steps:
        counts = corpus_counts(plan, manifest, leaf.streams)
        if "alpha" not in counts:
            continue
        route = own if leaf.step < GATED_AT else found.routes.fallbacks["alpha"].route
        shares = {**route.weights, **({"adapter:alpha": 1.0} if route.adapter else {})}
        for group, weight in shares.items():
            tokens[group] = tokens.get(group, 0) + counts["alpha"][1]
            part = Decimal(counts["alpha"][1]) * Decimal(str(weight))
            weighted[group] = weighted.get(group, Decimal(0)) + part
    stated = {row.group: row for row in found.attestation.coverage if row.corpus == "alpha"}
    assert {group: row.tokens for group, row in stated.items()} == tokens
    assert {group: Decimal(row.weighted_tokens) for group, row in stated.items()} == weighted
    assert tokens["embedding"] < tokens["head"] > tokens["adapter:alpha"]


def test_what_was_reached_before_the_gate_is_excluded_nowhere(tmp_path: Path) -> None:
    found = verified(world := rerouting(), world.run(tmp_path))
    attestation = found.attestation
    assert "embedding" not in attestation.levels.get("alpha", {})
    taint = {each.group: each for each in attestation.taint}
    assert "alpha" in taint["embedding"].direct
    assert "alpha" in taint["adapter:alpha"].direct
    assert "beta" in taint["adapter:alpha"].transitive  # one domain, by the link
    [domain] = [each for each in attestation.domains if "adapter:alpha" in each]
    assert "embedding" in domain
    # The control: of a gate that never falls the adapter is in no file and in no statement.
    calm = verified(other := rerouting(first=99), model := other.run(tmp_path / "calm"))
    assert calm.gates == ()
    assert calm.attestation.domains == attestation.domains
    assert [each.name for each in attestation.adapters] == ["acme", "alpha"]
    assert [each.name for each in calm.attestation.adapters] == ["acme"]
    assert [path.name for path in (model / "adapters").iterdir()] == ["acme"]
    assert "adapter:alpha" not in {each.group for each in calm.attestation.taint}
    assert "adapter:alpha" not in calm.attestation.levels["beta"]


def test_an_adapter_that_no_step_trained_is_refused(tmp_path: Path) -> None:
    """With it stands one more file, of which nothing in the ledger tells."""
    world = rerouting(first=99)
    with pytest.raises(VerificationFailed, match="not those that its steps trained"):
        verified(world, world.run(tmp_path, untrained=["alpha"]))


def test_a_gate_after_the_last_step_has_no_consequence(tmp_path: Path) -> None:
    world = rerouting(first=16)  # the probes of steps 17 and 19 exceed, and 19 is the last
    found = verified(world, model := world.run(tmp_path))
    [decision] = found.attestation.memorization.decisions
    assert (decision.step, decision.action, decision.fallback) == (19, "noticed", None)
    assert decision.followed == "noticed at the end, nothing followed"
    assert found.gates == ()
    assert not (model / "adapters" / "alpha").exists()


Leaves = Callable[[list[AnyLeaf]], list[AnyLeaf]]


def changed(change: Callable[[Leaf], Mapping[str, object]]) -> Leaves:
    """The leaves of alpha from the gate on, their use of it changed."""

    def each(leaf: AnyLeaf) -> AnyLeaf:
        if not isinstance(leaf, Leaf) or leaf.step < GATED_AT or "alpha" not in leaf.corpora:
            return leaf
        use = leaf.corpora["alpha"].model_copy(update=dict(change(leaf)))
        return leaf.model_copy(update={"corpora": {**leaf.corpora, "alpha": use}})

    return lambda leaves: [each(leaf) for leaf in leaves]


def left_out(leaves: list[AnyLeaf]) -> list[AnyLeaf]:
    return [
        leaf.model_copy(
            update={"corpora": {c: use for c, use in leaf.corpora.items() if c != "alpha"}}
        )
        if isinstance(leaf, Leaf) and leaf.step >= GATED_AT
        else leaf
        for leaf in leaves
        if not (isinstance(leaf, GradientNorms) and leaf.step >= GATED_AT)
    ]


def gates_to(fallback: str | None) -> Callable[[list[Gate]], list[Gate]]:
    return lambda gates: [gate.model_copy(update={"fallback": fallback}) for gate in gates]


@pytest.mark.parametrize(
    ("leaves", "gates", "message"),
    [
        pytest.param(
            changed(lambda leaf: {"route": None}),
            None,
            "alpha took their own route, and by the phases and gates they take route",
            id="goes on training the wide route",
        ),
        pytest.param(
            changed(lambda leaf: {"route": "sha256:" + "1" * 64}),
            None,
            "rows of corpus alpha took route sha256:1111",
            id="a route of nobody",
        ),
        pytest.param(left_out, None, "do not follow from the plan", id="left out instead"),
        pytest.param(
            None,
            gates_to("narrower"),
            "falls back to profile 'narrower', and the policy says that it falls back to profile "
            "'narrow'",
            id="another fallback",
        ),
        pytest.param(
            None, gates_to(None), "leaves the corpus out, and the policy says", id="no fallback"
        ),
        pytest.param(
            None,
            lambda gates: [],
            "by the phases and gates they take their own route",
            id="no gate",
        ),
    ],
)
def test_what_does_not_follow_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    leaves: Leaves | None,
    gates: Callable[[list[Gate]], list[Gate]] | None,
    message: str,
) -> None:
    world = rerouting()
    with monkeypatch.context() as lenient:  # whoever signs does not look
        lenient.setattr(attesting, "incidents", lambda *_: None)
        lenient.setattr(attesting.coverage, "coverage", lambda *_: ())
        folder = world.run(
            tmp_path,
            **({"change": leaves} if leaves else {}),
            **({"gates": gates} if gates else {}),
        )
    with pytest.raises(VerificationFailed, match=message):
        verified(world, folder)


# The one function that says which route rows take

FALLBACKS = {c: Fallback(f"of {c}", Route({}, c, 2)) for c in "ab"}


@st.composite
def some_gates(draw: st.DrawFn) -> list[Gate]:
    gates = []
    for corpus in "abc":
        for branch in (0, 1):
            if (step := draw(st.integers(0, 12))) < 10:
                fallback = f"of {corpus}" if corpus in FALLBACKS else None
                gates.append(
                    Gate(
                        branch=branch,
                        step=step,
                        corpus=corpus,
                        reason="memorization",
                        fallback=fallback,
                        evidence="sha256:" + "1" * 64,
                    )
                )
            if (step := draw(st.integers(0, 20))) < 10:
                time = "2026-11-10T08:30:00Z"
                gates.append(
                    Gate(
                        branch=branch,
                        step=step,
                        corpus=corpus,
                        reason="expired",
                        since=time,
                        time=time,
                    )
                )
    return draw(st.permutations(gates))


@given(some_gates(), st.integers(0, 1), st.integers(0, 11))
def test_the_strictest_gate_that_fell_decides(gates: list[Gate], branch: int, step: int) -> None:
    found = changed_routes(gates, FALLBACKS, branch, step)
    for corpus in "abc":
        fallen = [g for g in gates if (g.branch, g.corpus) == (branch, corpus) and g.step <= step]
        if not fallen:
            assert corpus not in found
        elif any(gate.legal for gate in fallen) or corpus not in FALLBACKS:
            assert found[corpus] is None
        else:
            assert found[corpus] == FALLBACKS[corpus].route
    later = changed_routes(gates, FALLBACKS, branch, step + 1)
    assert found.keys() <= later.keys()  # nothing lifts a gate
    assert all(later[c] is None for c, route in found.items() if route is None)
