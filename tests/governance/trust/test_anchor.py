"""What a verifier trusts: the root's rule of freshness; attestations and delegations revoked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from govray.errors import CouldNotCheck, Refused, Untrusted, VerificationFailed
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.statement import read
from govray.governance.policy.credential import verify_credential
from govray.governance.policy.depth_policy import verify_policy
from govray.governance.policy.revoked import check_unrevoked_credential, check_unrevoked_policy
from govray.governance.trust import anchor as anchoring
from govray.governance.trust.anchor import TrustAnchor, pinned_revocations, pinned_trust_root
from govray.governance.trust.authority import Authority, Delegation
from govray.governance.trust.revocation_list import Revocation, RevocationList
from govray.governance.trust.trust_state import TrustState
from govray.governance.verify.verifier import verify
from tests.support.world import AT, FINISHED, World, write

DURING = "2026-11-10T08:30:00Z"
AFTERWARDS = "2026-11-15T00:00:00Z"
TOMORROW = "2026-11-21T00:00:00Z"


def revoke(
    *entries: dict[str, str],
    issuer: str,
    by: tuple[LocalSigner, ...],
    sequence: int = 1,
    issued: str = "2026-11-16T00:00:00Z",
) -> bytes:
    document = RevocationList(
        issuer=issuer,
        sequence=sequence,
        issued=issued,
        entries=tuple(
            Revocation(**{"since": AFTERWARDS, "reason": "withdrawn"} | each) for each in entries
        ),
    )
    return document.seal(by)


def asking(world: World, name: str = "operator", **rule: int) -> bytes:
    """The root, in which one authority's list has a rule."""
    authorities = tuple(
        a.model_copy(update=rule) if a.name == name else a for a in world.authorities()
    )
    return world.sign_root(version=2, authorities=authorities)


def by_operator(world: World, *entries: dict[str, str], **changes: Any) -> bytes:
    return revoke(*entries, issuer="operator", by=(world.keys.operator,), **changes)


@pytest.mark.parametrize(
    ("rule", "given", "message"),
    [
        ({"minimum_revocations": 5}, None, "at least list 5 of operator, none was given"),
        ({"minimum_revocations": 5}, {"sequence": 4}, "list 4 of operator is older than list 5"),
        ({"minimum_revocations": 5}, {"sequence": 5}, None),
        ({"minimum_revocations": 5}, {"sequence": 6}, None),
        ({"maximum_revocation_age_hours": 96}, None, "a list of the last 96 hours of operator"),
        ({"maximum_revocation_age_hours": 96}, {}, "older than the 96 hours"),  # at the instant
        ({"maximum_revocation_age_hours": 97}, {}, None),
        (
            {"minimum_revocations": 2, "maximum_revocation_age_hours": 1},
            None,
            "at least list 2 and a list of the last 1 hours",
        ),
        ({}, None, None),
    ],
)
def test_a_root_that_asks_for_a_list_gives_no_answer_without_it(
    world: World,
    untouched: Path,
    rule: dict[str, int],
    given: dict[str, int] | None,
    message: str | None,
) -> None:
    root = asking(world, **rule)
    lists = [] if given is None else [by_operator(world, **given)]
    if message is None:
        verify(untouched, trust_root=root, revocations=lists, at=AT)
        return
    with pytest.raises(CouldNotCheck, match=message) as refused:
        verify(untouched, trust_root=root, revocations=lists, at=AT)
    assert refused.value.exit_code == 3


def test_without_the_rule_behind_it_a_stale_list_would_pass(
    world: World, untouched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the refusals above come from the one check in `TrustAnchor.apply`."""
    monkeypatch.setattr(anchoring, "check_fresh", lambda *_, **__: None)
    root = asking(world, minimum_revocations=5, maximum_revocation_age_hours=1)
    assert verify(untouched, trust_root=root, at=AT).revocations is None
    verify(untouched, trust_root=root, revocations=[by_operator(world)], at=AT)


def test_the_rule_holds_for_single_documents_too(world: World) -> None:
    root = asking(world, "archive", minimum_revocations=1)
    with pytest.raises(CouldNotCheck, match="of archive"):
        TrustAnchor.read(root).load(at=AT)

    def knowing(*entries: dict[str, str], others: Sequence[bytes] = ()) -> TrustState:
        made = revoke(*entries, issuer="archive", by=(world.keys.archive,))
        return TrustAnchor.read(root, [made, *others]).load(at=AT)

    policy = verify_policy(knowing(), world.policy, at=AT)
    credential = verify_credential(knowing(), world.credentials["alpha"], at=AT)
    check_unrevoked_policy(knowing(), policy, at=AT)
    check_unrevoked_credential(knowing(), credential, at=AT)
    with pytest.raises(Refused, match="revoked since"):
        check_unrevoked_credential(knowing({"corpus": "alpha"}), credential, at=AT)
    gone = revoke({"policy": policy.digest}, issuer="compliance", by=world.keys.compliance)
    with pytest.raises(Refused, match="revoked since"):
        check_unrevoked_policy(knowing(others=[gone]), policy, at=AT)


def test_a_rule_in_a_delegation_counts_where_the_delegation_does(
    world: World, untouched: Path
) -> None:
    [delegation] = [read(Delegation, Envelope.parse(d)).document for d in world.delegations]
    asked = delegation.authority.model_copy(update={"minimum_revocations": 2})
    changed = Delegation(delegator="archive", authority=asked).seal([world.keys.archive])
    anchor = TrustAnchor(world.root)
    anchor.load(at=AT)
    with pytest.raises(CouldNotCheck, match="at least list 2 of acme-legal"):
        anchor.load(at=AT, delegations=[changed])


def rotated(world: World, **rule: int) -> tuple[bytes, LocalSigner]:
    """The next root, in which the operator has another key, and that key."""
    key = LocalSigner.generate()
    update = {"keys": (key.public_key,)} | rule
    authorities = tuple(
        a.model_copy(update=update) if a.name == "operator" else a for a in world.authorities()
    )
    return world.sign_root(version=2, authorities=authorities), key


def test_after_a_change_of_keys_the_pinned_list_is_absent_and_still_not_gone_behind(
    world: World,
) -> None:
    entry = {"attestation": "sha256:" + "0" * 64}
    old = by_operator(world, entry, sequence=2)
    root, key = rotated(world)
    alone = TrustAnchor(root, pinned=(old,)).load(at=AT).revocations
    assert alone is not None
    assert alone.lists == ()
    assert "pinned list 2 of operator (no signature verifies" in alone.passed_over[0]

    asking_root, asked_key = rotated(world, minimum_revocations=2)
    with pytest.raises(CouldNotCheck, match="none was given; passed over: pinned list 2"):
        TrustAnchor(asking_root, pinned=(old,)).load(at=AT)
    again = revoke(entry, issuer="operator", by=(asked_key,), sequence=2)
    TrustAnchor(asking_root, (again,), pinned=(old,)).load(at=AT)

    def given(*entries: dict[str, str], sequence: int) -> None:
        new = revoke(*entries, issuer="operator", by=(key,), sequence=sequence)
        lists = TrustAnchor(root, (new,), pinned=(old,)).load(at=AT).revocations
        assert lists is not None
        assert [each.document.sequence for each in lists.lists] == [sequence]
        assert lists.passed_over == ()

    given(entry, sequence=3)
    with pytest.raises(Untrusted, match="never goes back"):
        given(entry, sequence=1)
    with pytest.raises(Untrusted, match="lacks an entry"):
        given(sequence=3)


def test_pinned_lists_go_with_the_pinned_root_and_are_never_gone_behind(
    world: World, untouched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write(pinned_trust_root(), asking(world, minimum_revocations=2))
    with pytest.raises(CouldNotCheck, match="at least list 2"):
        verify(untouched, at=AT)
    write(pinned_revocations() / "operator.dsse.json", by_operator(world, sequence=2))
    model = verify(untouched, at=AT)
    assert [each.document.sequence for each in model.revocations.lists] == [2]  # type: ignore[union-attr]
    with pytest.raises(VerificationFailed, match=r"step 13 .*never goes back"):
        verify(untouched, revocations=[by_operator(world, sequence=1)], at=AT)
    newer = verify(untouched, revocations=[by_operator(world, sequence=3)], at=AT)
    assert [each.document.sequence for each in newer.revocations.lists] == [3]  # type: ignore[union-attr]
    other = revoke(issuer="archive", by=(world.keys.archive,))
    both = verify(untouched, revocations=[other], at=AT).revocations
    assert both
    assert [each.document.issuer for each in both.lists] == ["archive", "operator"]
    # A file of the pinned root's name has its lists, another's has none.
    again = tmp_path / "root.json"
    write(again, pinned_trust_root().read_bytes())
    assert verify(untouched, trust_root=again, at=AT).revocations
    write(again, World(name="elsewhere").root)
    assert TrustAnchor.read(again).pinned == ()


def test_a_revoked_attestation_no_longer_verifies(world: World, untouched: Path) -> None:
    digest = verify(untouched, trust_root=world.root, at=AT).digest
    lists = [by_operator(world, {"attestation": digest})]
    with pytest.raises(VerificationFailed, match=r"step 13 .*revoked since 2026-11-15") as refused:
        verify(untouched, trust_root=world.root, revocations=lists, at=AT)
    assert refused.value.where == "attestation"
    later = [by_operator(world, {"attestation": digest, "since": TOMORROW})]
    model = verify(untouched, trust_root=world.root, revocations=later, at=AT)
    assert set(model.revoked) == {"attestation"}
    other = [by_operator(world, {"attestation": "sha256:" + "0" * 64})]
    assert verify(untouched, trust_root=world.root, revocations=other, at=AT).revoked == {}


def team(world: World, name: str, key: LocalSigner) -> tuple[Authority, bytes]:
    authority = world.operator.model_copy(update={"name": name, "keys": (key.public_key,)})
    delegation = Delegation(delegator="operator", authority=authority)
    return authority, delegation.seal([world.keys.operator])


def test_an_operator_by_delegation_revokes_its_own_attestations_only(tmp_path: Path) -> None:
    world = World()
    mine, others = LocalSigner.generate(), LocalSigner.generate()
    (_, first), (_, second) = team(world, "team-a", mine), team(world, "team-b", others)
    world.delegations += [first, second]
    folder = world.deploy(tmp_path / "model", operator=mine)
    digest = verify(folder, trust_root=world.root, at=AT).digest

    def check(issuer: str, key: LocalSigner) -> None:
        lists = [revoke({"attestation": digest}, issuer=issuer, by=(key,))]
        verify(folder, trust_root=world.root, revocations=lists, at=AT)

    with pytest.raises(VerificationFailed, match="revoked since"):
        check("team-a", mine)
    with pytest.raises(VerificationFailed, match="revoked since"):
        check("operator", world.keys.operator)
    with pytest.raises(VerificationFailed, match="revokes an attestation of team-a"):
        check("team-b", others)


def delegation_digest(data: bytes) -> str:
    return read(Delegation, Envelope.parse(data)).digest


@pytest.mark.parametrize(
    ("since", "passes"), [(DURING, False), (FINISHED, False), (AFTERWARDS, True)]
)
def test_what_was_signed_by_a_revoked_delegate_counts_up_to_then(
    world: World, untouched: Path, since: str, passes: bool
) -> None:
    digest = delegation_digest(world.delegations[0])
    entry = {"delegation": digest, "since": since}
    lists = [revoke(entry, issuer="archive", by=(world.keys.archive,))]
    if passes:
        model = verify(untouched, trust_root=world.root, revocations=lists, at=AT)
        assert set(model.revoked) == {"acme"}
        return
    with pytest.raises(VerificationFailed, match=r"step 6 .*'acme-legal'.*delegation is revoked"):
        verify(untouched, trust_root=world.root, revocations=lists, at=AT)


def test_a_credential_of_a_revoked_delegate_is_refused_from_then_on(world: World) -> None:
    digest = delegation_digest(world.delegations[0])
    lists = revoke({"delegation": digest}, issuer="archive", by=(world.keys.archive,))
    trust = TrustAnchor(world.root, (lists,)).load(at=AT, delegations=world.delegations)
    before = datetime(2026, 11, 14, 23, 59, 59, tzinfo=UTC)
    verify_credential(trust, world.credentials["acme"], at=before)
    with pytest.raises(Untrusted, match="delegation is revoked since 2026-11-15"):
        verify_credential(trust, world.credentials["acme"], at=AT)
    verify_credential(trust, world.credentials["alpha"], at=AT)


def test_nobody_revokes_a_delegation_that_is_not_theirs(world: World) -> None:
    digest = delegation_digest(world.delegations[0])
    for issuer, keys in (
        ("acme-legal", (world.keys.acme,)),
        ("operator", (world.keys.operator,)),
        ("compliance", world.keys.compliance),
    ):
        lists = revoke({"delegation": digest}, issuer=issuer, by=keys)
        with pytest.raises(Untrusted, match="revokes the delegation of 'acme-legal'"):
            TrustAnchor(world.root, (lists,)).load(at=AT, delegations=world.delegations)


def test_a_revoked_operators_attestations_no_longer_verify(tmp_path: Path) -> None:
    world = World()
    mine, below = LocalSigner.generate(), LocalSigner.generate()
    authority, first = team(world, "team-a", mine)
    child = authority.model_copy(update={"name": "team-a-1", "keys": (below.public_key,)})
    second = Delegation(delegator="team-a", authority=child).seal([mine])
    world.delegations += [first, second]
    folder = world.deploy(tmp_path / "model", operator=below)
    verify(folder, trust_root=world.root, at=AT)
    lists = [by_operator(world, {"delegation": delegation_digest(first)})]
    with pytest.raises(VerificationFailed, match=r"step 2 .*'team-a-1'.*delegation is revoked"):
        verify(folder, trust_root=world.root, revocations=lists, at=AT)
    # A list of the revoked ones is not asked for, and one that there is does no harm.
    own = revoke(issuer="team-a-1", by=(below,))
    with pytest.raises(VerificationFailed, match="delegation is revoked"):
        verify(folder, trust_root=world.root, revocations=[*lists, own], at=AT)
