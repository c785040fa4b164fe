"""What a folder that verifies gives, and the ways of asking."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from govray.errors import CouldNotCheck, Malformed
from govray.governance.attestation import model_folder
from govray.governance.policy.credential import Period
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.trust.anchor import pinned_trust_root
from govray.governance.verify import steps
from govray.governance.verify import verifier as verifying
from govray.governance.verify.steps import STEPS
from govray.governance.verify.verifier import VerifiedModel, verify
from tests.support.world import AT, POLICY, World, write


@pytest.fixture(scope="module")
def verified(world: World, untouched: Path) -> VerifiedModel:
    return verify(untouched, trust_root=world.root, at=AT)


def test_who_signed_what(world: World, untouched: Path, verified: VerifiedModel) -> None:
    assert verified.path == untouched
    assert verified.signer == "operator"
    assert verified.keyids == {world.keys.operator.public_key.keyid}
    assert [s.name for s in verified.subjects] == [
        "adapters/acme/adapter_config.json",
        "adapters/acme/adapter_model.safetensors",
        "govray.json",
        "model.safetensors",
    ]
    assert verified.uncovered == ()
    assert verified.trust_root.root.name == "example-org"
    assert set(verified.credentials) == {"acme", "alpha", "beta", "gamma"}


def test_coverage_by_corpus(verified: VerifiedModel) -> None:
    table = verified.coverage
    assert table.groups == (
        "embedding", "block.0", "block.1", "final_norm", "head", "adapter:acme",
    )  # fmt: skip
    gamma = table["gamma", "head"]
    assert gamma.tokens > 0
    assert not gamma.indirect
    assert table["gamma", "final_norm"].weighted_tokens == gamma.tokens * Decimal("0.3")
    excluded = table["gamma", "embedding"]
    assert (excluded.tokens, excluded.records, excluded.steps) == (0, 0, 0)
    assert excluded.indirect
    # A removable corpus reaches nothing but its adapter, not even indirectly.
    assert not table["acme", "embedding"].indirect
    assert table["acme", "adapter:acme"].tokens > 0
    for unknown in (("zeta", "head"), ("copyleft", "head"), ("alpha", "block.7")):
        with pytest.raises(KeyError):
            table[unknown]


def test_a_root_can_be_a_path_or_pinned(
    world: World, untouched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "root.json", world.root)
    verify(str(untouched), trust_root=str(tmp_path / "root.json"), at=AT)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    write(pinned_trust_root(), world.root)
    assert pinned_trust_root() == tmp_path / "config" / "govray" / "trust-root.json"
    verify(untouched, at=AT)


def test_a_file_that_is_not_covered_does_not_verify_with_its_folder(
    world: World, model: Path
) -> None:
    write(model / "plots" / "loss.svg", b"x")
    verify(model, trust_root=world.root, at=AT)
    for path in (model / "plots" / "loss.svg", model / "plots"):
        with pytest.raises(CouldNotCheck, match="says nothing"):
            verify(path, trust_root=world.root, at=AT)


@pytest.mark.parametrize(
    "spelling",
    [
        "model/../evil.bin",
        "model/governance/../../evil.bin",
        "model/adapters/acme/../../../evil.bin",
        "model/linked.bin",
        "model/linked/evil.bin",
        "latest/../model/../evil.bin",
        "model/../outside",
    ],
)
def test_what_is_reached_through_a_folder_is_not_thereby_in_it(
    world: World, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    write(tmp_path / "evil.bin", b"weights of somebody else")
    write(tmp_path / "outside" / "evil.bin", b"weights of somebody else")
    (model / "linked.bin").symlink_to(tmp_path / "evil.bin")
    (model / "linked").symlink_to(tmp_path / "outside")
    (tmp_path / "latest").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    for path in (Path(spelling), tmp_path / spelling, spelling):
        with pytest.raises(CouldNotCheck, match="there is no attestation here"):
            verify(path, trust_root=world.root, at=AT)

    # Negative control: by the letters of its path, each of them lies in the folder.
    by_letters = (tmp_path / spelling).parents
    assert any((p / model_folder.ATTESTATION).is_file() for p in by_letters)


@pytest.mark.parametrize(
    "spelling",
    [
        "model/adapters/../model.safetensors",
        "model/../model/model.safetensors",
        "latest/model.safetensors",
        "weights.safetensors",
        "latest",
        "model/adapters/..",
    ],
)
def test_links_and_dots_that_lead_into_the_folder_are_followed(
    world: World, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    (tmp_path / "latest").symlink_to(model)
    (tmp_path / "weights.safetensors").symlink_to(model / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    found = verify(Path(spelling), trust_root=world.root, at=AT).path
    assert found == (tmp_path / "latest" if spelling.startswith("latest") else model)
    write(model / "notes.txt", b"x")
    (tmp_path / "notes").symlink_to(model / "notes.txt")
    for path in ("latest/notes.txt", "notes"):
        with pytest.raises(CouldNotCheck, match="says nothing"):
            verify(path, trust_root=world.root, at=AT)


def test_expiry_after_the_run_does_not_invalidate_it(world: World, tmp_path: Path) -> None:
    """A credential and a policy that were in force when the run ended, and are not now."""
    soon = Period(from_="2026-01-01T00:00:00Z", until="2026-11-12T00:00:00Z")
    policy = read_policy(POLICY.replace("until: 2027-11-01", "until: 2026-11-12")).seal(
        world.keys.compliance
    )
    folder = world.deploy(
        tmp_path / "model", policy=policy, credentials={"acme": world.issue("acme", valid=soon)}
    )
    verify(folder, trust_root=world.root, at=AT)


def test_a_corpus_can_be_left_out_by_tombstone(world: World, tmp_path: Path) -> None:
    """What a replay without a corpus leaves behind verifies as well."""
    folder = world.deploy(tmp_path / "model", plan=lambda plan: plan.without("acme"))
    replayed = verify(folder, trust_root=world.root, at=AT)
    assert "adapter:acme" not in replayed.coverage.groups  # no step trained it
    assert not any("acme" in t.transitive for t in replayed.attestation.taint)
    ranges = [leaf.streams for leaf in replayed.ledger.steps]
    original = world.deploy(tmp_path / "with")
    again = verify(original, trust_root=world.root, at=AT)
    assert ranges == [leaf.streams for leaf in again.ledger.steps]


def test_a_run_that_was_stopped_verifies(world: World, tmp_path: Path) -> None:
    folder = world.deploy(tmp_path / "model", leaves=lambda leaves: leaves[:3])
    stopped = verify(folder, trust_root=world.root, at=AT)
    assert len(stopped.ledger.steps) == 3
    assert len(stopped.ledger.norms) == 2
    assert stopped.attestation.ledger.size == 5


@pytest.mark.parametrize("name", [model_folder.ATTESTATION, model_folder.LEDGER])
def test_without_attestation_or_ledger_nothing_is_said(
    world: World, model: Path, name: str
) -> None:
    (model / name).unlink()
    with pytest.raises(CouldNotCheck) as answer:
        verify(model, trust_root=world.root, at=AT)
    assert answer.value.exit_code == 3


def test_list_and_code_have_the_same_steps_in_the_same_order() -> None:
    assert [step.number for step in STEPS] == list(range(1, len(STEPS) + 1))
    used = re.findall(r"_step\(steps\.([A-Z_]+)\)", inspect.getsource(verifying._verify))
    coded = [getattr(steps, name) for name in dict.fromkeys(used)]
    # A step may have a part that comes early, under its own number: lists before signatures.
    assert sorted(coded, key=lambda step: step.number) == list(STEPS)
    assert [step for step in coded if step is not steps.REVOCATIONS] == [
        step for step in STEPS if step is not steps.REVOCATIONS
    ]


def test_it_runs_where_nothing_heavy_is_installed(
    world: World, model: Path, tmp_path: Path
) -> None:
    """In a fresh interpreter that refuses to import any of them."""
    write(tmp_path / "root.json", world.root)
    script = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "ray", "pyarrow", "safetensors"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from datetime import datetime, UTC
from govray import verify
from govray.governance.verify import trace
model = verify({str(model)!r}, trust_root={str(tmp_path / "root.json")!r},
               at=datetime(2026, 11, 20, tzinfo=UTC))
print(model.coverage["copyleft_limited", "block.0"].indirect)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_reading_is_confined(world: World, model: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    shutil.copytree(model, secret)
    (model / "linked").symlink_to(secret)
    opened = model_folder.Bundle(model)
    for name in ("../secret/config.json", "/etc/hostname", "linked/config.json", "a//b", "", "."):
        with pytest.raises(Malformed):
            opened.read(name, limit=1 << 20)
    with pytest.raises(Malformed, match="larger than 10"):
        opened.read(model_folder.ATTESTATION, limit=10)
