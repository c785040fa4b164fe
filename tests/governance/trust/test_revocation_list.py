"""Revocation lists: who may revoke what, that they only grow, and what verification says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Untrusted, VerificationFailed
from govray.governance.formats.document import format_time
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.statement import Subject, read, seal
from govray.governance.policy.credential import verify_credential
from govray.governance.policy.depth_policy import verify_policy
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.policy.revoked import revoked_credential, revoked_policy
from govray.governance.record.gates import Gate, changed_routes, encode_gates, read_gates
from govray.governance.record.ledger import CorpusUse, Leaf
from govray.governance.trust.revocation_list import (
    Revocation,
    RevocationList,
    Revocations,
    verify_revocations,
)
from govray.governance.verify.verifier import verify
from tests.support.gated_model import DURING, EXPIRED, GATING, deploy
from tests.support.table import each_row
from tests.support.world import AT, FINISHED, POLICY, STARTED, World

BEFORE = "2026-11-09T00:00:00Z"
AFTERWARDS = "2026-11-15T00:00:00Z"
ISSUED = "2026-11-16T00:00:00Z"


def entry(since: str = AFTERWARDS, **names: str) -> Revocation:
    return Revocation(since=since, reason="withdrawn", **(names or {"corpus": "acme"}))


def revoke(
    world: World,
    *entries: Revocation,
    issuer: str = "acme-legal",
    by: tuple[LocalSigner, ...] | None = None,
    sequence: int = 1,
    issued: str = ISSUED,
) -> bytes:
    document = RevocationList(issuer=issuer, sequence=sequence, issued=issued, entries=entries)
    return document.seal(by or (world.keys.acme,))


def policy_digest(world: World) -> str:
    return verify_policy(world.trust, world.policy, at=AT).digest


def test_a_list_is_what_its_issuer_signed(world: World) -> None:
    data = revoke(world, entry())
    assert verify_revocations(world.trust, data, at=AT).document.sequence == 1
    [found] = Revocations.load(world.trust, [data], at=AT).lists
    credential = verify_credential(world.trust, world.credentials["acme"], at=AT)
    revoked = revoked_credential(Revocations((found,)), credential)
    assert revoked is not None
    assert (format_time(revoked.since), revoked.reason) == (AFTERWARDS, "withdrawn")
    other = verify_credential(world.trust, world.credentials["alpha"], at=AT)
    assert revoked_credential(Revocations((found,)), other) is None


def test_a_credential_can_be_revoked_by_digest_and_the_earliest_counts(world: World) -> None:
    credential = verify_credential(world.trust, world.credentials["acme"], at=AT)
    data = revoke(world, entry(), entry(DURING, credential=credential.digest))
    revoked = revoked_credential(Revocations.load(world.trust, [data], at=AT), credential)
    assert revoked is not None
    assert format_time(revoked.since) == DURING


def test_a_delegator_revokes_what_its_delegate_issued_and_a_policy_authority_a_policy(
    world: World,
) -> None:
    data = revoke(world, entry(), issuer="archive", by=(world.keys.archive,))
    credential = verify_credential(world.trust, world.credentials["acme"], at=AT)
    assert revoked_credential(Revocations.load(world.trust, [data], at=AT), credential)
    policy = verify_policy(world.trust, world.policy, at=AT)
    named = entry(policy=policy.digest)
    data = revoke(world, named, issuer="compliance", by=world.keys.compliance)
    assert revoked_policy(Revocations.load(world.trust, [data], at=AT), policy)


Make = Callable[[World], bytes]


def _other_subject(world: World) -> bytes:
    document = RevocationList(issuer="acme-legal", sequence=1, issued=ISSUED, entries=())
    return seal(document, [Subject.of("x", "sha256:" + "0" * 64)], [world.keys.acme])


@each_row(
    ("make", "message"),
    [
        (lambda w: revoke(w, by=(LocalSigner.generate(),)), "no signature verifies"),
        (lambda w: revoke(w, by=(w.keys.operator,)), "operator signed it"),
        (
            lambda w: revoke(w, issuer="compliance", by=w.keys.compliance[:1]),
            "no signature verifies|1 of 2",
        ),
        (lambda w: revoke(w, by=(w.keys.archive,)), "names 'acme-legal' as issuer"),
        (_other_subject, "subject is not what its document says"),
        (lambda w: revoke(w, entry(policy="sha256:" + "0" * 64)), "of the role policy"),
        (
            lambda w: revoke(w, entry(), issuer="compliance", by=w.keys.compliance),
            "of the role credential",
        ),
        (lambda w: revoke(w, entry(corpus="alpha")), "'alpha', which is outside the scope"),
        (lambda w: revoke(w, issued="2026-11-21T00:00:00Z"), "after the reference time"),
    ],
)
def test_a_list_that_the_root_does_not_carry_is_refused(
    world: World, make: Make, message: str
) -> None:
    with pytest.raises(Untrusted, match=message):
        verify_revocations(world.trust, make(world), at=AT)


def _load(world: World, data: bytes, previous: Revocations | None = None) -> Revocations:
    return Revocations.load(world.trust, [data], at=AT, previous=previous)


@each_row(
    ("make", "message"),
    [
        (lambda w: [revoke(w, entry(), sequence=4)], "never goes back"),
        (lambda w: [revoke(w, entry(), entry(corpus="acme2"), sequence=5)], "two different lists"),
        (lambda w: [revoke(w, sequence=6)], "lacks an entry"),
        (lambda w: [], "is gone"),
    ],
)
def test_a_list_never_goes_back(
    world: World, make: Callable[[World], list[bytes]], message: str
) -> None:
    accepted = _load(world, revoke(world, entry(), sequence=5))
    with pytest.raises(Untrusted, match=message):
        Revocations.load(world.trust, make(world), at=AT, previous=accepted)


def test_two_lists_of_one_issuer_are_refused(world: World) -> None:
    with pytest.raises(Untrusted, match="two revocation lists"):
        Revocations.load(world.trust, [revoke(world), revoke(world, sequence=2)], at=AT)


def test_without_a_list_nothing_is_said_of_revocations(world: World, untouched: Path) -> None:
    assert verify(untouched, trust_root=world.root, at=AT).revocations is None


def test_what_was_revoked_after_the_run_is_stated(world: World, untouched: Path) -> None:
    model = verify(untouched, trust_root=world.root, revocations=[revoke(world, entry())], at=AT)
    assert set(model.revoked) == {"acme"}
    nothing = verify(untouched, trust_root=world.root, revocations=[revoke(world)], at=AT)
    assert nothing.revoked == {}
    assert nothing.revocations is not None


@pytest.mark.parametrize("since", [BEFORE, STARTED, DURING, FINISHED])
def test_what_the_run_used_although_it_was_revoked_fails(
    world: World, untouched: Path, since: str
) -> None:
    lists = [revoke(world, entry(since))]
    with pytest.raises(VerificationFailed, match=r"step 13 .*revoked since") as refused:
        verify(untouched, trust_root=world.root, revocations=lists, at=AT)
    assert refused.value.where == "credential of corpus acme"


def test_a_policy_revoked_before_the_run_ended_fails(world: World, untouched: Path) -> None:
    digest = policy_digest(world)
    for since, fails in ((DURING, True), (AFTERWARDS, False)):
        data = revoke(
            world, entry(since, policy=digest), issuer="compliance", by=world.keys.compliance
        )
        if fails:
            with pytest.raises(VerificationFailed, match="step 13"):
                verify(untouched, trust_root=world.root, revocations=[data], at=AT)
        else:
            model = verify(untouched, trust_root=world.root, revocations=[data], at=AT)
            assert set(model.revoked) == {"policy"}


def test_a_corpus_that_was_never_read_may_have_been_revoked(world: World, tmp_path: Path) -> None:
    folder = world.deploy(tmp_path / "model", plan=lambda plan: plan.without("acme"))
    model = verify(folder, trust_root=world.root, revocations=[revoke(world, entry(BEFORE))], at=AT)
    assert set(model.revoked) == {"acme"}


def test_a_gated_run_verifies_and_counts_what_it_used(
    world: World, tmp_path: Path, untouched: Path
) -> None:
    model = verify(deploy(world, tmp_path / "m", EXPIRED), trust_root=world.root, at=AT)
    assert model.gates == (EXPIRED,)
    whole = verify(untouched, trust_root=world.root, at=AT)
    place = "acme", "adapter:acme"
    assert 0 < model.coverage[place].tokens < whole.coverage[place].tokens
    others = [("alpha", "head"), ("beta", "embedding"), ("gamma", "head")]
    for other in others:
        assert model.coverage[other].tokens == whole.coverage[other].tokens
    read = {leaf.step for leaf in model.ledger.steps if "acme" in leaf.corpora}
    assert read == {0, 1, 2}


def _use_again(leaves: list[Leaf]) -> list[Leaf]:
    last = leaves[-1]
    corpora = {**last.corpora, "acme": CorpusUse(rows=1, targets=7)}
    return [*leaves[:-1], last.model_copy(update={"corpora": corpora})]


def _omit_earlier(leaves: list[Leaf]) -> list[Leaf]:
    first = leaves[0]
    corpora = {c: use for c, use in first.corpora.items() if c != "acme"}
    return [first.model_copy(update={"corpora": corpora}), *leaves[1:]]


def _gate(**changes: Any) -> Gate:
    return Gate(**{**dict(EXPIRED), **changes})


@pytest.mark.parametrize(
    ("gates", "hooks", "message"),
    [
        pytest.param((), {}, r"step 6 .*expired", id="expired and not gated"),
        pytest.param((EXPIRED,), {"text": POLICY}, r"step 10 .*policy stops", id="policy stops"),
        pytest.param((EXPIRED,), {"leaves": _use_again}, r"a gate left out", id="used again"),
        pytest.param(
            (EXPIRED,), {"leaves": _omit_earlier}, r"do not follow from the plan", id="no cause"
        ),
        pytest.param((_gate(corpus="delta"),), {}, r"step \d+ ", id="unknown corpus"),
        pytest.param((_gate(step=6),), {}, r"the plan has 6 steps", id="behind the last step"),
        pytest.param(
            (EXPIRED,),
            {"leaves": lambda leaves: leaves[:2]},
            r"which the ledger does not have",
            id="in no leaf",
        ),
        pytest.param(
            (_gate(time="2026-11-10T09:00:01Z"),), {}, r"did not go on", id="after the run"
        ),
        pytest.param(
            (_gate(since="2026-11-10T08:30:02Z"),), {}, r"step 6 .*expired", id="gated late"
        ),
        pytest.param(
            (EXPIRED,),
            {"gates_data": lambda data: data + data},
            r"out of order",
            id="gated twice",
        ),
        pytest.param((EXPIRED,), {"gates_data": lambda data: b"{}\n"}, r"step 6 ", id="no gate"),
    ],
)
def test_a_gate_that_does_not_fit_is_refused(
    world: World, tmp_path: Path, gates: tuple[Gate, ...], hooks: dict[str, Any], message: str
) -> None:
    folder = deploy(world, tmp_path / "model", *gates, **hooks)
    with pytest.raises(VerificationFailed, match=message):
        verify(folder, trust_root=world.root, at=AT)


def test_a_gate_by_revocation_counts_until_it_was_revoked(world: World, tmp_path: Path) -> None:
    data = revoke(world, entry(DURING))
    digest = read(RevocationList, Envelope.parse(data)).digest
    gate = _gate(reason="revoked", revocations=digest)
    folder = world.deploy(
        tmp_path / "model",
        policy=read_policy(GATING).seal(world.keys.compliance),
        gates=[gate],
    )
    model = verify(folder, trust_root=world.root, revocations=[data], at=AT)
    assert set(model.revoked) == {"acme"}
    earlier = revoke(world, entry("2026-11-10T08:29:00Z"))
    with pytest.raises(VerificationFailed, match="step 13"):
        verify(folder, trust_root=world.root, revocations=[earlier], at=AT)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 9), st.sampled_from("abc")),
        unique_by=lambda t: (t[0], t[2]),
    )
)
def test_gates_round_trip_and_are_never_lifted(places: list[tuple[int, int, str]]) -> None:
    gates = [_gate(branch=b, step=s, corpus=c) for b, s, c in places]
    back = read_gates(encode_gates(gates))
    assert sorted(back, key=lambda g: g.place) == sorted(gates, key=lambda g: g.place)
    for branch in range(3):
        left_out = [{*changed_routes(back, {}, branch, step)} for step in range(11)]
        assert all(a <= b for a, b in pairwise(left_out))
