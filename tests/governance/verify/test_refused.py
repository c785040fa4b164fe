"""That each check is the only one that notices, and where a trust root may not come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from govray.errors import CouldNotCheck, VerificationFailed
from govray.governance.attestation import model_folder
from govray.governance.verify import ledger_step, plan_steps, verifier
from govray.governance.verify.verifier import verify
from tests.conformance.attacks import CASES, average_and_replay
from tests.support.world import AT, World, write

# Switching the check off: these attacks leave everything else consistent, so nothing else notices.

SOLE_CHECKS = {
    "a stranger's signature added": "check_signatures",
    "key hint changed": "check_signatures",
    "removal before the run ended": "check_statement",
    "removal after the reference time": "check_statement",
    "another root named": "check_statement",
    "plan reads fewer rows than were prepared": "check_plan",
    "counts that the plan does not give": "_check_counts",
    "a step under another policy": "_check_leaves",
    "gradient norms on a rank that the step had not": "_check_norms",
    "gradient norms on another rank": "_check_norms",
    "gradient norms of more rows": "_check_norms",
    "gradient norm where none is permitted": "_check_norms",
    "gradient norm left out of a group": "_check_norms",
    "note by a stranger": "_check_note",
    "coverage understated": "check_coverage",
    "gradient-norm share understated": "check_coverage",
    "taint hidden": "check_coverage",
    "level without evidence": "check_coverage",
    "tensor of no layer group": "_check_tensors",
    "more assurance than is shown": "check_assurance",
    "disclaimer shortened": "check_assurance",
    "registered late": "check_execution",
    "attested early": "check_execution",
    "submitted under another policy": "check_execution",
    "another image than the job's": "check_execution",
}


@pytest.mark.parametrize(("name", "check"), list(SOLE_CHECKS.items()))
def test_without_its_check_the_attack_passes(
    name: str, check: str, world: World, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [case] = [case for case in CASES if case.name == name]
    case.attack(world, model)
    place = next(m for m in (verifier, ledger_step, plan_steps) if hasattr(m, check))
    monkeypatch.setattr(place, check, lambda *_: None)
    world.verify(model)


def test_a_replay_that_compared_the_average_too_passes(world: World, model: Path) -> None:
    average_and_replay(model_folder.WEIGHTS, model_folder.EMA)(world, model)
    verified = verify(model, trust_root=world.root, at=AT)
    assert [each.is_operator for each in verified.replayed_by["acme"]] == [True]


@pytest.mark.parametrize(
    "name", ["replay of other weights", "replay of the weights, and not of their average"]
)
def test_without_its_check_a_replay_of_other_weights_passes(
    name: str, world: World, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above; this check also returns who replayed."""
    [case] = [case for case in CASES if case.name == name]
    case.attack(world, model)
    monkeypatch.setattr(verifier, "check_replays", lambda *_, **__: {})
    verify(model, trust_root=world.root, at=AT)


def test_a_root_from_inside_the_folder_is_refused(world: World, model: Path) -> None:
    """Also behind a link, also when the file is the true root: where it comes from is the point."""
    inside = model / "root.json"
    inside.write_bytes(world.root)
    link = model.parent / "my-root.json"
    link.symlink_to(inside)
    outside = model.parent / "root.json"
    outside.write_bytes(world.root)
    for path in (inside, link, model / "governance" / ".." / "root.json"):
        with pytest.raises(VerificationFailed, match=r"step 1 .*never trusted"):
            verify(model, trust_root=path, at=AT)
    inside.unlink()
    verify(model, trust_root=outside, at=AT)


def test_a_pinned_root_inside_the_folder_is_refused(
    world: World, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(model / "govray" / "trust-root.json", world.root)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(model))
    with pytest.raises(VerificationFailed, match=r"step 1 .*never trusted"):
        verify(model, at=AT)


def test_without_a_root_nothing_is_said(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nothing"))
    with pytest.raises(CouldNotCheck) as answer:
        verify(model, at=AT)
    assert answer.value.exit_code == 3
