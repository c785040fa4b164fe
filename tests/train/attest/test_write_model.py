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
from govray.train.attest.write_model import by_hand, unsigned, write_model
from govray.train.checkpoint import commit_folder
from govray.train.run_folder import events
from govray.train.run_folder.clock import instant, now
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


WITHOUT = """
import sys
from pathlib import Path

sys.modules.update(dict.fromkeys(["torch", "ray", "safetensors"]))

from govray.train.attest.write_model import unsigned

print(unsigned(*map(Path, sys.argv[1:])).commit)
"""


def test_a_finished_run_is_read_without_torch_ray_and_key(alone: Path, tmp_path: Path) -> None:
    """The parser's process has none of them. All but what needs the key is as in the model."""
    run, folder = copied(alone, tmp_path), tmp_path / "read"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, run, folder], check=True, capture_output=True, text=True
    )
    found = snapshot.latest(run)
    assert found is not None
    assert done.stdout.strip() == commit_folder.open_commit(found[0]).digest
    model = {
        path.relative_to(run / "model").as_posix(): path.read_bytes()
        for path in (run / "model").rglob("*")
        if path.is_file()
    }
    del model[model_folder.ATTESTATION], model[model_folder.CHECKPOINT]
    assert {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    } == model


def test_a_run_by_hand_is_as_isolated_as_the_least_of_its_drivers(
    alone: Path, tmp_path: Path
) -> None:
    run = copied(alone, tmp_path)
    found = unsigned(run, tmp_path / "read")
    for drivers, isolation in (
        ([True], "machine"),
        ([True, False], "sharedCluster"),
        ([], "sharedCluster"),
    ):
        (run / events.FILE).write_bytes(b"")
        told = [
            events.DriverStarted(at=now(), driver=1, host="h", pid=1, alone=each)
            for each in drivers
        ]
        started = [events.AttemptStarted(at=now(), attempt=n, world_size=1, step=0) for n in (0, 1)]
        events.append(run, *told, *started)
        stated = by_hand(run, found, at=instant())
        assert (stated.isolation, stated.attempts) == (isolation, 2)
