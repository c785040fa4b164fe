"""What is loaded is what was verified; what does not verify is not loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from govray.engine.model.gpt import GPT
from govray.errors import Refused, UsageError, VerificationFailed
from govray.governance.attestation import model_folder
from govray.platform.inference import served_model
from govray.platform.inference.served_model import ServedModel, load
from tests.platform.inference.conftest import Trained
from tests.support.flipped import flip


@pytest.fixture(scope="module")
def served(trained: Trained) -> ServedModel:
    return load(trained.folder, trust_root=trained.root)


def test_it_has_the_attested_weights_and_adapters(served: ServedModel, trained: Trained) -> None:
    assert isinstance(served.model, GPT)
    assert served.names == ("acme",)
    assert served.attestation == served.verified.digest
    assert not any(each.requires_grad for each in served.model.parameters())
    assert not served.model.training


@pytest.mark.parametrize(
    "name",
    [model_folder.WEIGHTS, model_folder.CONFIG, *model_folder.adapter_files("acme")],
)
def test_a_changed_file_is_not_loaded(trained: Trained, tmp_path: Path, name: str) -> None:
    folder = trained.copy(tmp_path / "model")
    flip(folder / name)
    with pytest.raises(VerificationFailed):
        load(folder, trust_root=trained.root)


def test_a_file_that_changes_behind_the_verification_is_not_loaded(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of hashing what is loaded: verification alone saw nothing."""
    folder = trained.copy(tmp_path / "model")
    whole = served_model.verify

    def then_changed(*args: object, **kwargs: object) -> object:
        found = whole(*args, **kwargs)  # type: ignore[arg-type]
        flip(folder / model_folder.WEIGHTS)
        return found

    monkeypatch.setattr(served_model, "verify", then_changed)
    with pytest.raises(Refused, match="changed after it was verified"):
        load(folder, trust_root=trained.root)


def test_a_model_does_not_choose_the_code_that_runs(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = served_model._AttestedFiles.read

    def other_class(self: object, name: str) -> bytes:
        data = read(self, name)  # type: ignore[arg-type]
        if name != model_folder.CONFIG:
            return data
        config = json.loads(data) | {"entrypoint": "os:system"}
        return json.dumps(config, sort_keys=True, separators=(",", ":")).encode()

    monkeypatch.setattr(served_model._AttestedFiles, "read", other_class)
    with pytest.raises(UsageError, match="os:system, which is not one of govray's own"):
        load(trained.folder, trust_root=trained.root)
