"""`adapter remove` and `export`, on a model folder that verifies."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT
from govray.engine.model.layer_groups import layer_groups
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import LayerGroup, Replay
from govray.governance.formats.keys import LocalSigner
from govray.governance.verify import verifier as verifying
from tests.support.command import Run, write_key
from tests.support.tree import ROOT
from tests.support.world import World

PAGE = ROOT / "docs" / "replay.md"


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
    verified = world.verify(untouched)
    digests = {s.name: s.sha256 for s in verified.subjects}
    evidence = Replay(
        corpus="acme",
        party="operator",
        plan=verified.attestation.plan.without("acme").digest,
        files={model_folder.WEIGHTS: digests[model_folder.WEIGHTS]},
        environment=verified.attestation.environment,
    )
    folder = world.deploy(tmp_path / "replayed", replays=[evidence])
    check = ("--trust-root", root, "--at", at)
    assert "acme 2 (replay identical, by operator itself)" in run("verify", folder, *check).out
    out = run("adapter", "remove", folder, "acme", "--key", key, *check).out
    assert "acme 3 (removed)" in out
    said = run("verify", folder, *check).out
    assert "acme 3 (removed; replayed by operator itself)" in said
    # A new attestation, of the same base files.
    after = world.verify(folder)
    assert after.digest != verified.digest
    assert set(after.attestation.levels["acme"].values()) == {3}
    kept = {s.name: s.sha256 for s in after.subjects}
    assert kept == {
        n: d for n, d in digests.items() if not n.startswith(f"{model_folder.ADAPTERS}/")
    }
    assert model_folder.WEIGHTS in kept


def test_a_key_that_is_no_operator_s_changes_nothing(
    run: Run, model: Path, root: Path, tmp_path: Path, at: str
) -> None:
    stranger = write_key(tmp_path / "stranger.pem", LocalSigner.generate())
    check = ("--trust-root", root, "--at", at)
    done = run("adapter", "remove", model, "acme", "--key", stranger, *check, code=1)
    assert "nothing was changed" in done.err
    assert "acme" in run("verify", model, *check).out
    assert (model / "adapters" / "acme").is_dir()


def test_export_gives_nothing_but_the_bytes_that_were_verified(
    run: Run, model: Path, root: Path, tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody writes to the folder between the verification and the copy."""
    tensors = model / "adapters" / "acme" / "adapter_model.safetensors"
    verify_model = verifying.verify

    def verified_then_changed(*given: Any, **named: Any) -> Any:
        found = verify_model(*given, **named)
        tensors.write_bytes(b"others")
        return found

    monkeypatch.setattr(verifying, "verify", verified_then_changed)
    check = ("--trust-root", root, "--at", at)
    refused = run("adapter", "export", model, "acme", "--out", "exported", *check, code=1)
    assert "changed while it was being checked" in refused.err
    assert not (tmp_path / "exported").exists()


def test_the_page_about_adapters_works_as_written(
    run: Run, world: World, model: Path, root: Path, key: Path, at: str
) -> None:
    """Its commands, and its Python between them, which loads with peft what `export` wrote."""
    text = PAGE.read_text()
    of_page = {"MODEL": model, "ROOT": root, "acme-notes": "acme"}
    commands = {
        line.split()[2]: (*(of_page.get(word, word) for word in line.split()[1:]), "--at", at)
        for line in text.splitlines()
        if line.startswith("govray adapter ")
    }
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    governed = GPT(blocks=2, width=16, context=8, vocabulary=11)
    adapters = Adapters(governed, {"acme": 2}, seed=1)
    with torch.no_grad():
        for _, parameter in adapters.named_parameters():
            parameter.normal_(std=0.3)
    put_into(world, model, governed, adapters)

    run(*commands["export"])
    names: dict[str, Any] = {}
    exec(snippet, names)
    tokens = torch.arange(8).expand(2, 8)
    with adapters.active("acme"):
        expected = governed(tokens)
    torch.testing.assert_close(names["model"](tokens), expected, rtol=1e-5, atol=1e-6)
    # The control: the adapter says something.
    assert not torch.allclose(expected, governed(tokens), atol=1e-3)
    run(*commands["remove"])
    assert not (model / "adapters").exists()


def put_into(world: World, folder: Path, model: GPT, adapters: Adapters) -> None:
    """Real tensors in place of the folder's zeros, signed again."""
    document = world.verify(folder).attestation
    config, tensors = adapters.export("acme")
    config_file, weights_file = model_folder.adapter_files("acme")
    (folder / config_file).write_text(json.dumps(config))
    safetensors.torch.save_file(tensors, folder / weights_file)
    safetensors.torch.save_file(dict(model.state_dict()), folder / model_folder.WEIGHTS)
    groups = [LayerGroup(group=g, parameters=names) for g, names in layer_groups(model).items()]
    (adapter,) = document.adapters
    held = adapter.model_copy(update={"tensors": tuple(sorted(tensors))})
    changes = {"groups": tuple(groups), "adapters": (held,)}
    world.attest(folder, document.model_copy(update=changes))
