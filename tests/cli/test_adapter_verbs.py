"""`adapter remove` and `adapter export`, on a model folder that verifies."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Run, write_key
from world import AT, World

from govray.governance import bundle
from govray.governance.attestation import Replay
from govray.governance.keys import LocalSigner
from govray.governance.verify import verify


@pytest.fixture
def key(world: World, tmp_path: Path) -> Path:
    return write_key(tmp_path / "operator.pem", world.keys.operator)


def test_removal_keeps_the_base_and_the_result_verifies(
    run: Run, world: World, model: Path, root: Path, key: Path, at: str
) -> None:
    check = ("--trust-root", root, "--at", at)
    before = run("verify", model, *check, "--json").json["subjects"]
    told = run("adapter", "remove", model, "acme", "--key", key, *check, "--json").json
    assert told["subjects"] == {n: d for n, d in before.items() if "adapters/" not in n}
    assert not (model / "adapters").exists()
    after = run("verify", model, *check).out
    assert f"removed    adapter acme, {at}" in after
    # No replay was attested, so removal alone raises no level.
    assert told["levels"] == {"acme": 1}
    assert "acme 1 (exclusion counted)" in after


def test_after_a_replay_removal_is_level_three(
    run: Run, world: World, untouched: Path, root: Path, key: Path, tmp_path: Path, at: str
) -> None:
    verified = verify(untouched, trust_root=world.root, at=AT)
    digests = {s.name: s.sha256 for s in verified.subjects}
    evidence = Replay(
        corpus="acme",
        party="operator",
        plan=verified.attestation.plan.without("acme").digest,
        files={bundle.WEIGHTS: digests[bundle.WEIGHTS]},
        environment=verified.attestation.environment,
    )
    folder = world.deploy(tmp_path / "replayed", replays=[evidence])
    check = ("--trust-root", root, "--at", at)
    assert "acme 2 (replay identical)" in run("verify", folder, *check).out
    out = run("adapter", "remove", folder, "acme", "--key", key, *check).out
    assert "acme 3 (removed)" in out
    assert "acme 3 (removed)" in run("verify", folder, *check).out


def test_a_second_removal_and_an_unknown_adapter_are_usage(
    run: Run, model: Path, root: Path, key: Path, at: str
) -> None:
    check = ("--key", key, "--trust-root", root, "--at", at)
    assert "It has acme" in run("adapter", "remove", model, "amce", *check, code=2).err
    run("adapter", "remove", model, "acme", *check)
    assert "already removed" in run("adapter", "remove", model, "acme", *check, code=2).err


def test_a_key_that_is_no_operator_s_changes_nothing(
    run: Run, model: Path, root: Path, tmp_path: Path, at: str
) -> None:
    stranger = write_key(tmp_path / "stranger.pem", LocalSigner.generate())
    check = ("--trust-root", root, "--at", at)
    done = run("adapter", "remove", model, "acme", "--key", stranger, *check, code=1)
    assert "nothing was changed" in done.err
    assert "acme" in run("verify", model, *check).out
    assert (model / "adapters" / "acme").is_dir()


def test_nothing_is_signed_on_an_unverified_folder(
    run: Run, model: Path, root: Path, key: Path, at: str
) -> None:
    (model / "config.json").write_text("{}")
    check = ("--key", key, "--trust-root", root, "--at", at)
    assert "step 4" in run("adapter", "remove", model, "acme", *check, code=1).err
    run("adapter", "remove", model, "acme", "--key", key, code=3)  # no trust root


def test_export_copies_the_peft_layout_of_a_verified_model(
    run: Run, model: Path, root: Path, tmp_path: Path, at: str
) -> None:
    check = ("--trust-root", root, "--at", at)
    told = run("adapter", "export", model, "acme", "--out", "exported", *check, "--json").json
    assert set(told["files"]) == {"adapter_config.json", "adapter_model.safetensors"}
    for name in told["files"]:
        copied = tmp_path / "exported" / name
        assert copied.read_bytes() == (model / "adapters" / "acme" / name).read_bytes()
    again = run("adapter", "export", model, "acme", "--out", "exported", *check, code=2)
    assert "already exists" in again.err
    wrong = run("adapter", "export", model, "beta", "--out", "other", *check, code=2)
    assert "It has acme" in wrong.err
    assert not (tmp_path / "other").exists()
