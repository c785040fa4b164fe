"""From a commit to a model folder: digests from the manifest, bytes copied and not read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import govray
from govray.errors import VerificationFailed
from govray.governance.attestation import model_folder
from govray.train.attest.write_model import write_model
from govray.train.checkpoint import commit_folder
from govray.train.state import snapshot
from tests.support.deployment import Deployment


def copied(alone: Path, place: Path) -> Path:
    """A copy of the run, with the prepared data whose records it is attested by."""
    shutil.copytree(alone.parent / "prepared", place / "prepared")
    return Path(shutil.copytree(alone, place / "run"))


def test_attesting_reads_no_weights_and_gives_the_same_subjects(
    alone: Path, deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied(alone, tmp_path)
    before = govray.verify(run / "model", trust_root=deployment.root).subjects
    read = commit_folder._read

    def counting(path: Path, size: int) -> Any:
        assert path.suffix != ".safetensors", path
        return read(path, size)

    monkeypatch.setattr(commit_folder, "_read", counting)
    model = write_model(run, deployment.signers["operator"])
    assert govray.verify(model, trust_root=deployment.root).subjects == before
    found = snapshot.latest(run)
    assert found is not None
    weights = found[0] / model_folder.WEIGHTS
    assert weights.stat().st_ino != (model / model_folder.WEIGHTS).stat().st_ino, (
        "a copy, not a link"
    )


def test_a_bit_that_flipped_since_the_commit_is_found_by_verify(
    alone: Path, deployment: Deployment, tmp_path: Path
) -> None:
    run = copied(alone, tmp_path)
    found = snapshot.latest(run)
    assert found is not None
    weights = found[0] / model_folder.WEIGHTS
    data = bytearray(weights.read_bytes())
    data[-3] ^= 4
    weights.write_bytes(data)
    model = write_model(run, deployment.signers["operator"])
    with pytest.raises(VerificationFailed, match=model_folder.WEIGHTS):
        govray.verify(model, trust_root=deployment.root)


def test_a_finished_run_is_read_without_torch_and_ray() -> None:
    """The attestor's process has neither."""
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'ray', 'safetensors']));"
        "import govray.train.attest.write_model"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
