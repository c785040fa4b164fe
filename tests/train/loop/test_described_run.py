"""A run under the file's own optimizer, schedule and average: resumed equal, and kept apart."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import govray
from govray.errors import Refused
from govray.governance.attestation import model_folder
from govray.storage.place import place
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.stored_tensors import tensors_of
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.state import snapshot
from tests.support.deployment import Deployment
from tests.support.killed_training import killed_after
from tests.support.solo import run_here

CHANGES: dict[str, Any] = {
    "optimizer": {
        "name": "torch.optim.SGD",
        "lr": 0.3,
        "arguments": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    },
    "schedule": {
        "name": "torch.optim.lr_scheduler.LinearLR",
        "arguments": {"start_factor": 0.1, "total_iters": 3},
        "steps": 3,
        "then": {
            "name": "torch.optim.lr_scheduler.CosineAnnealingLR",
            "arguments": {"T_max": 9},
        },
    },
    "resources": {"num_workers": 1},
}


def train(
    here: Deployment, *, resume: Path | None = None, attest: bool = False, **changes: Any
) -> Path:
    experiment = parse_experiment(here.experiment(**CHANGES, **changes), where="here")
    return Path(str(GovernedTrainer(experiment, resume=resume).train(attest=attest)))


def killed(here: Deployment, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Path:
    """A run that dies after eight steps, once what it committed by then is whole."""
    before = set(here.folder.glob("runs/tiny-*"))
    killed_after(8, lambda: train(here, **changes), monkeypatch)
    [run] = set(here.folder.glob("runs/tiny-*")) - before
    return run


def held(run: Path, file: str) -> dict[str, Tensor]:
    """The tensors of a file of the run's last commit."""
    found = snapshot.latest(place(run))
    assert found is not None
    return tensors_of(commit_folder.open_commit(found[0]), file)


def base_weights(run: Path) -> dict[str, Tensor]:
    return held(run, model_folder.WEIGHTS)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def test_it_resumes_equal_and_an_adapters_corpus_moves_no_base_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch)
    here = Deployment(tmp_path)
    straight = base_weights(train(here))
    broken = killed(here, monkeypatch)
    assert not same(straight, base_weights(broken))
    assert same(straight, base_weights(train(here, resume=broken)))
    data = {**here.experiment()["data"], "exclude": ["acme"]}  # type: ignore[dict-item]
    assert same(straight, base_weights(train(here, data=data)))
    trunk = {**data, "exclude": ["weak-one"]}
    assert not same(straight, base_weights(train(here, data=trunk)))  # the control


def test_an_average_is_kept_exactly_and_apart_and_attested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch)
    here = Deployment(tmp_path)
    ema: dict[str, Any] = {"ema": {"decay": 0.9}}
    run = train(here, **ema, attest=True)
    straight = held(run, model_folder.EMA)
    assert same(base_weights(run), base_weights(train(here)))  # it moves no weight
    assert not same(straight, base_weights(run))
    broken = killed(here, monkeypatch, **ema)
    assert same(straight, held(train(here, resume=broken, **ema), model_folder.EMA))
    data = {**here.experiment()["data"], "exclude": ["acme"]}  # type: ignore[dict-item]
    assert same(straight, held(train(here, data=data, **ema), model_folder.EMA))
    trunk = {**data, "exclude": ["weak-one"]}
    assert not same(straight, held(train(here, data=trunk, **ema), model_folder.EMA))

    model = run / "model"
    govray.verify(model, trust_root=here.root)
    assert same(straight, load_file(model / model_folder.EMA))
    assert json.loads((model / "govray.json").read_bytes())["ema"] == {"decay": 0.9, "every": 1}
    for change in (lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: b""):
        altered = tmp_path / f"altered-{len(change(b'ab'))}"
        shutil.copytree(model, altered)
        file = altered / model_folder.EMA
        file.write_bytes(change(file.read_bytes()))
        with pytest.raises(Refused, match=model_folder.EMA):
            govray.verify(altered, trust_root=here.root)
    file.unlink()
    with pytest.raises(Refused, match="the file is missing"):
        govray.verify(altered, trust_root=here.root)
    plain = train(here, attest=True) / "model"
    shutil.copytree((model / model_folder.EMA).parent, (plain / model_folder.EMA).parent)
    with pytest.raises(Refused, match="not covered by the attestation, but stands where"):
        govray.verify(plain, trust_root=here.root)
