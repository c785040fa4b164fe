"""What each release wrote and signed is read and verified, and a run of it goes on."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

import govray
from govray.errors import VerificationFailed
from govray.train.driver.trainer import GovernedTrainer
from tests.support.flipped import flip
from tests.support.golden_worlds import GOLDEN, OPERATOR, experiment, verdict
from tests.support.solo import run_here


@pytest.fixture(scope="module", params=sorted(GOLDEN.glob("*.zip")), ids=lambda path: path.stem)
def worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    with zipfile.ZipFile(request.param) as archive:
        archive.extractall(folder)
    return folder


def test_there_is_one_of_this_version() -> None:
    assert (GOLDEN / f"{govray.__version__}.zip").exists()


def test_each_kind_of_model_verifies_with_the_verdict_of_its_time(worlds: Path) -> None:
    places = sorted((worlds / "models").iterdir())
    assert len(places) >= 12
    for place in places:
        then = json.loads((place / "verdict.json").read_bytes())
        now = verdict(place / "model", (place / "root.json").read_bytes())
        # A later verdict may say more.
        assert {name: now.get(name) for name in then} == then, place.name


def test_none_verifies_once_a_bit_is_another(worlds: Path) -> None:
    for place in sorted((worlds / "models").iterdir()):
        weights = place / "model" / "model.safetensors"
        flip(weights)
        with pytest.raises(VerificationFailed):
            verdict(place / "model", (place / "root.json").read_bytes())


def test_a_run_that_stopped_then_goes_on_and_its_model_verifies(
    worlds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch)
    monkeypatch.chdir(worlds / "stopped")
    key = Path("operator.pem")
    key.write_bytes(OPERATOR.to_pem())
    key.chmod(0o600)
    [run] = Path("runs").glob("tiny-*")
    GovernedTrainer(experiment(), resume=run, other_code=True).train(attest=True)
    found = govray.verify(run / "model", trust_root=Path("root.json"))
    assert found.attestation.run.id == run.name
