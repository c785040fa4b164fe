"""What was hashed is what is used: a file that changes while it is verified changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from govray.errors import VerificationFailed
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_folder import Bundle
from govray.governance.verify import verifier as verifying
from govray.governance.verify.verifier import verify
from tests.support.gated_model import EXPIRED, deploy
from tests.support.world import AT, World, safetensors


@pytest.fixture
def gated(world: World, tmp_path: Path) -> Path:
    """A model folder whose run gated a corpus, so that it has every kind of file."""
    return deploy(world, tmp_path / "gated", EXPIRED)


def after_step_4(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do ``act`` as soon as the digests of all files were compared."""
    check = verifying.check_files

    def checked(*given: Any) -> Any:
        found = check(*given)
        act()
        return found

    monkeypatch.setattr(verifying, "check_files", checked)


PINNED = [
    model_folder.POLICY,
    model_folder.GATES,
    model_folder.CREDENTIALS,
    model_folder.MANIFEST,
    model_folder.LEDGER,
    model_folder.CHECKPOINT,
]


@pytest.mark.parametrize("name", PINNED)
def test_a_governance_file_swapped_after_it_was_hashed_is_refused(
    world: World, gated: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    verify(gated, trust_root=world.root, at=AT)
    swapped = (gated / name).read_bytes() + b"\n"
    after_step_4(monkeypatch, lambda: (gated / name).write_bytes(swapped))
    with pytest.raises(VerificationFailed, match="changed while it was being checked") as refusal:
        verify(gated, trust_root=world.root, at=AT)
    assert refusal.value.where == name


def test_control_without_the_digest_other_gates_are_believed(
    world: World, gated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: gates that say the same, but of another time than the signed ones."""
    other = (gated / model_folder.GATES).read_bytes().replace(b"08:30:02Z", b"08:30:09Z")
    after_step_4(monkeypatch, lambda: (gated / model_folder.GATES).write_bytes(other))
    read = Bundle.read

    def unbound(self: Bundle, name: str, *, limit: int, digest: str | None = None) -> bytes:
        return read(self, name, limit=limit)

    with monkeypatch.context() as patch:
        patch.setattr(Bundle, "read", unbound)
        found = verify(gated, trust_root=world.root, at=AT).gates
    assert [gate.time for gate in found] == ["2026-11-10T08:30:09Z"]


def test_weights_swapped_after_they_were_hashed_are_not_looked_into(
    world: World, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names that are compared stand in the bytes that were hashed."""
    hiding = safetensors(["secret.weight"])
    after_step_4(monkeypatch, lambda: (model / model_folder.WEIGHTS).write_bytes(hiding))
    assert verify(model, trust_root=world.root, at=AT).subjects


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        (model_folder.CHECKPOINT, model_folder.MAX_NOTE),
        (model_folder.POLICY, model_folder.MAX_ENVELOPE),
        (model_folder.CONFIG, model_folder.MAX_ENVELOPE),
        ("adapters/acme/adapter_config.json", model_folder.MAX_ENVELOPE),
        (model_folder.GATES, model_folder.MAX_LINES),
        (model_folder.LEDGER, model_folder.MAX_LINES),
    ],
)
def test_a_file_is_hashed_as_far_as_it_would_be_read(
    world: World, gated: Path, monkeypatch: pytest.MonkeyPatch, name: str, limit: int
) -> None:
    """A terabyte of nothing costs what the largest permitted file costs."""
    assert model_folder.read_limit(name) == limit
    monkeypatch.setattr(model_folder, "read_limit", lambda name: 1 << 16)
    sparse(gated / name, 1 << 40)
    with pytest.raises(VerificationFailed, match=r"step 4 .*larger than 65536 bytes"):
        verify(gated, trust_root=world.root, at=AT)
