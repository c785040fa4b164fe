"""A run under the file's own optimizer and schedule: resumed equal, and base weights kept apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from govray.checkpoint import commit_folder
from govray.errors import UsageError
from govray.files.place import place
from govray.governance.attestation import model_folder
from govray.train.driver.trainer import from_experiment
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.state import snapshot
from tests.support.deployment import Deployment
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
    here: Deployment, *, fails_at: int = -1, resume: Path | None = None, **changes: Any
) -> Path:
    def on_step(step: int, metrics: object) -> None:
        if step == fails_at:
            raise InterruptedError

    experiment = parse_experiment(here.experiment(**CHANGES, **changes), where="here")
    before = set(here.folder.glob("runs/tiny-*"))
    try:
        return Path(str(from_experiment(experiment, on_step=on_step, resume=resume).train()))
    except InterruptedError:
        [run] = set(here.folder.glob("runs/tiny-*")) - before
        return run


def base_weights(run: Path) -> dict[str, Tensor]:
    found = snapshot.latest(place(run))
    assert found is not None
    return commit_folder.open_commit(found[0]).tensors(model_folder.WEIGHTS)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def test_it_resumes_equal_and_an_adapters_corpus_moves_no_base_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch)
    here = Deployment(tmp_path)
    straight = base_weights(train(here))
    broken = train(here, fails_at=7)
    assert not same(straight, base_weights(broken))
    assert same(straight, base_weights(train(here, resume=broken)))
    data = {**here.experiment()["data"], "exclude": ["acme"]}  # type: ignore[dict-item]
    assert same(straight, base_weights(train(here, data=data)))
    trunk = {**data, "exclude": ["weak-one"]}
    assert not same(straight, base_weights(train(here, data=trunk)))  # the control


def test_a_mistake_ends_before_any_data_is_read(tmp_path: Path) -> None:
    here = Deployment(tmp_path)
    wrong = {"name": "torch.optim.SGD", "arguments": {"momentun": 0.9}}
    value = here.experiment(**{**CHANGES, "optimizer": wrong})
    with pytest.raises(UsageError, match="did you mean 'momentum'"):
        from_experiment(parse_experiment(value, where="here"))
    assert not (tmp_path / "runs").exists()
