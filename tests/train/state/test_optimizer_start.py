"""A run that starts with the optimizer's state of the run whose model it starts from."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from govray.cli import main
from govray.engine.model.gpt import GPT
from govray.errors import GovrayError, Refused, UsageError
from govray.governance.attestation import model_folder
from govray.governance.verify.verifier import VerifiedModel, verify
from govray.train.checkpoint import tensor_shards
from govray.train.checkpoint.commit_folder import CommitFolder, open_commit
from govray.train.checkpoint.pins import read_pins
from govray.train.checkpoint.stored_tensors import tensors_of
from govray.train.inputs.pretrained_start import OptimizerStart
from govray.train.inputs.run_record import read_record
from govray.train.replay.replayed_run import replay
from govray.train.state.optimizer_start import load_optimizer
from govray.train.state.snapshot import committed_folders, latest
from govray.train.state.trained_model import OPTIMIZER
from tests.support.deployment import POLICY, Deployment
from tests.support.flipped import flip
from tests.support.ranks import RankPool
from tests.support.solo import run_here

SHAPE: dict[str, Any] = {"blocks": 2, "width": 32, "context": 32, "dropout": 0.1}
ADAMW: dict[str, Any] = {"lr": 1e-2, "clip_norm": None}
STEPS = 4


@pytest.fixture(scope="module", autouse=True)
def no_ray() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_here(monkeypatch)
        yield


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return Deployment(tmp_path_factory.mktemp("here"))


def train(here: Deployment, **changes: Any) -> Path:
    value = {"optimizer": ADAMW, "resources": {"num_workers": 1}} | changes
    trainer = here.trainer(**value)
    run = trainer.train(attest=True)
    assert isinstance(run, Path)
    return run


@pytest.fixture(scope="module")
def first(here: Deployment) -> Path:
    return train(here, max_steps=STEPS, checkpoint={"every_steps": 2, "save_trial_latest": 4})


def after(run: Path, **changes: Any) -> dict[str, Any]:
    return {"pretrained": str(run / "model"), "pretrained_optimizer": str(run)} | changes


@pytest.fixture(scope="module")
def second(here: Deployment, first: Path) -> Path:
    """One step, so that each number in it has a cause."""
    return train(here, max_steps=1, **after(first))


def commit(run: Path) -> CommitFolder:
    found = latest(run)
    assert found is not None
    return open_commit(found[0])


def weights(run: Path) -> dict[str, Tensor]:
    return tensors_of(commit(run), model_folder.WEIGHTS)


def state(run: Path) -> dict[str, Tensor]:
    return tensors_of(commit(run), OPTIMIZER)


def model(here: Deployment, run: Path) -> VerifiedModel:
    return verify(run / "model", trust_root=here.root)


def test_the_first_step_is_what_torch_makes_of_the_kept_moments(
    here: Deployment, first: Path, second: Path
) -> None:
    sgd = {"name": "torch.optim.SGD", "arguments": {"momentum": 0.9}, "clip_norm": None, "lr": 1.0}
    plain = train(here, max_steps=1, pretrained=str(first / "model"), optimizer=sgd)
    gradients = state(plain)  # the first buffer of momentum is the gradient
    network = GPT(vocabulary=257, **SHAPE)
    network.load_state_dict(weights(first))
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=ADAMW["lr"], betas=(0.9, 0.95), weight_decay=0.1
    )
    kept = state(first)
    for name, parameter in network.named_parameters():
        parameter.grad = gradients[f"momentum_buffer/{name}"]
        optimizer.state[parameter] = {
            key: kept[f"{key}/{name}"].clone() for key in ("step", "exp_avg", "exp_avg_sq")
        }
    optimizer.step()
    begun, found = weights(second), state(second)
    for name, parameter in network.named_parameters():
        assert torch.equal(begun[name], parameter), name
        for key, value in optimizer.state[parameter].items():
            assert torch.equal(found[f"{key}/{name}"], value), f"{key}/{name}"
        assert found[f"step/{name}"] == STEPS + 1
    anew = weights(train(here, max_steps=1, pretrained=str(first / "model")))
    assert not any(torch.equal(anew[name], begun[name]) for name, _ in network.named_parameters())
    adapters = [name for name in found if "acme" in name and name.startswith("step/")]
    assert adapters
    assert {int(found[name]) for name in adapters} == {1}


def test_it_is_attested_with_the_commit_that_its_weights_were_attested_from(
    here: Deployment, first: Path, second: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = model(here, second).attestation.run
    assert stated.initial_optimizer == model(here, first).attestation.execution.commit
    assert stated.initial_optimizer == commit(first).digest
    assert main(["verify", str(second / "model"), "--trust-root", str(here.root)]) == 0
    assert stated.initial_optimizer[:15] in capsys.readouterr().out
    assert model(here, first).attestation.run.initial_optimizer is None
    assert any("starts from it" in why for why in read_pins(first).values())


def test_moments_bring_what_the_weights_bring_to_a_narrower_policy(
    here: Deployment, first: Path
) -> None:
    """What may no longer reach a layer has reached its moments, so its exclusion has no level."""
    narrower = POLICY.replace('layers: ["blocks[0.5:]", final_norm, head]', "layers: [head]")
    governance = {**here.experiment()["governance"], "policy": str(here.sign_policy(narrower))}  # type: ignore[dict-item]
    given = after(first, max_steps=1, governance=governance)
    kept = model(here, train(here, **given)).attestation
    given.pop("pretrained_optimizer")
    plain = model(here, train(here, **given)).attestation
    assert "weak-one" in kept.pretrained["block.1"]
    assert kept.levels["weak-one"]["block.1"] == 0
    assert (kept.pretrained, kept.levels, kept.taint) == (
        plain.pretrained,
        plain.levels,
        plain.taint,
    )
    alone = model(here, train(here, max_steps=1, governance=governance)).attestation
    assert alone.levels["weak-one"]["block.1"] == 1


def test_a_replay_begins_with_the_same_moments(
    here: Deployment, second: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert OPTIMIZER in replay(second).original
    assert model(here, second).attestation.levels["acme"]["block.1"] == 1
    told = ["replay", str(second), "--without", "acme", "--key", str(here.key)]
    assert main(told) == main(["attest", str(second), "--key", str(here.key)]) == 0
    assert model(here, second).attestation.levels["acme"]["block.1"] == 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"optimizer": {"name": "torch.optim.SGD"}}, "stored for AdamW over"),
        ({"optimizer": {"betas": [0.8, 0.95]}}, r"betas was \(0.9, 0.95\), and is \(0.8, 0.95\)"),
        ({"precision": "bf16"}, "is torch.bfloat16 here, and its moments are of F32"),
        ({"pretrained_optimizer": "{model}"}, "no commit lies there"),
        ({"pretrained_optimizer": "x" * 400}, "no commit lies there"),
        ({"pretrained_optimizer": "{other}"}, "and that is not here"),
        ({"pretrained_optimizer": "{earlier}"}, "and that is not here"),
        ({"pretrained": "{commit}"}, "no model that verifies under the run's trust root"),
        ({"pretrained": None}, "belongs to weights, and none are named"),
        ({"framework": "jax"}, "pretrained"),
    ],
    ids=str,
)
def test_what_does_not_belong_together_is_refused_before_a_run_begins(
    here: Deployment, first: Path, second: Path, changes: dict[str, Any], named: str
) -> None:
    places = {
        "{model}": first / "model",
        "{other}": second,
        "{commit}": commit(first).folder,
        "{earlier}": committed_folders(first)[-1][1],
    }
    given = {
        key: str(places.get(value, value)) if isinstance(value, str) else value
        for key, value in changes.items()
    }
    before = {each.name for each in (here.folder / "runs").iterdir()}
    with pytest.raises(GovrayError, match=named) as refused:
        train(here, max_steps=1, **after(first, **given))
    assert isinstance(refused.value, Refused | UsageError)
    assert refused.value.do
    assert {each.name for each in (here.folder / "runs").iterdir()} == before


@pytest.mark.parametrize("name", [OPTIMIZER, "optimizer.json", "manifest.json"])
def test_a_changed_commit_is_refused(
    here: Deployment, first: Path, second: Path, tmp_path: Path, name: str
) -> None:
    copy = Path(shutil.copytree(str(commit(first).folder), tmp_path / "commit"))
    record = read_record(second)
    assert record.start
    assert record.start.optimizer
    start = replace(record.start.optimizer, folder=str(copy))
    network = GPT(vocabulary=257, **SHAPE)
    optimizer = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.95))
    load_optimizer(network, optimizer, start)
    flip(copy / name)
    with pytest.raises(Refused, match="pretrained_optimizer"):
        load_optimizer(network, optimizer, start)
    with pytest.raises(Refused, match="pretrained_optimizer"):
        train(here, max_steps=1, **after(first, pretrained_optimizer=str(copy)))


def begun(start: OptimizerStart) -> dict[str, Tensor]:
    """The state that a rank's rows of a sharded model begin with."""
    network = GPT(vocabulary=257, **SHAPE)
    tensor_shards.shard(network)
    optimizer = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.95))
    load_optimizer(network, optimizer, start)
    return {
        f"{key}/{name}": value.to_local() if isinstance(value, DTensor) else value
        for name, parameter in network.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def test_ranks_that_share_a_model_begin_with_their_rows(
    first: Path, second: Path, two_ranks: RankPool
) -> None:
    record = read_record(second)
    assert record.start
    kept = state(first)
    parts = two_ranks.run(begun, record.start.optimizer)
    for name in {name for name in kept if "acme" not in name} | parts[0].keys():
        one, other = (part[name] for part in parts)
        found = torch.cat([one, other]) if one.ndim else one
        assert torch.equal(found, kept[name]), name
        assert one.ndim or torch.equal(one, other)
