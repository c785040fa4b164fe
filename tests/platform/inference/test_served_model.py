"""What is loaded is what was verified; what does not verify is not loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from govray.engine.model.gpt import GPT
from govray.errors import CouldNotCheck, Refused, UsageError, VerificationFailed
from govray.governance.attestation import model_folder
from govray.governance.formats.keys import LocalSigner
from govray.governance.trust.trust_state import sign_root
from govray.platform.inference import served_model
from govray.platform.inference.generation import generate
from govray.platform.inference.served_model import ServedModel, load
from tests.platform.inference.conftest import Trained


@pytest.fixture(scope="module")
def served(trained: Trained) -> ServedModel:
    return load(trained.folder, trust_root=trained.root)


def test_it_has_the_attested_weights_and_adapters(served: ServedModel, trained: Trained) -> None:
    assert isinstance(served.model, GPT)
    assert served.names == ("acme",)
    assert served.attestation == served.verified.digest
    assert not any(each.requires_grad for each in served.model.parameters())
    assert not served.model.training


def test_texts_repeat_and_an_adapter_gives_others(served: ServedModel) -> None:
    prompt = "acme says: the quick "
    base = generate(served, prompt, max_tokens=8, temperature=1.0, seed=1)
    assert base == generate(served, prompt, max_tokens=8, temperature=1.0, seed=1)
    assert base.tokens <= 8
    tokens = torch.tensor([[served.tokenizer.separator, *prompt.encode()]])
    with torch.no_grad():
        plain = served.model(tokens)
        with served.adapters.active("acme"):
            adapted = served.model(tokens)
    assert not torch.equal(plain, adapted)
    with pytest.raises(UsageError, match="adapter"):
        generate(served, prompt, adapter="umbrella")


def test_a_text_longer_than_the_context_and_an_empty_one_are_gone_on_with(
    served: ServedModel,
) -> None:
    assert generate(served, "x" * 500, max_tokens=2).tokens <= 2
    assert generate(served, "", max_tokens=2).tokens <= 2


def test_a_text_ends_by_its_bounds(served: ServedModel) -> None:
    assert generate(served, "a", max_tokens=1, temperature=50.0).finish in {"tokens", "separator"}
    cold = generate(served, "a", max_tokens=3, temperature=5e-324, seed=1)
    assert cold == generate(served, "a", max_tokens=3)
    ticks = iter(range(100))
    late = generate(served, "a", max_tokens=50, seconds=2.5, clock=lambda: float(next(ticks)))
    assert (late.finish, late.tokens <= 2) == ("time", True)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


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


def test_another_trust_root_is_refused(trained: Trained) -> None:
    stranger = LocalSigner.generate()
    root = trained.deployment._root().model_copy(update={"keys": (stranger.public_key,)})
    with pytest.raises(VerificationFailed):
        load(trained.folder, trust_root=sign_root(root, [stranger]))


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


def test_another_tokenizer_is_refused(trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(
        json.dumps(
            {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
        )
    )
    with pytest.raises(CouldNotCheck, match="tokenizer is bytes"):
        load(trained.folder, trust_root=trained.root, tokenizer=path)
