"""The average of weights: torch's own numbers, by the plan step, and no weight moved."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from govray.train.experiment.sections import Ema
from govray.train.state.weight_average import WeightAverage


def a_model() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))


def moved(model: nn.Module, step: int) -> None:
    torch.manual_seed(step)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))


@pytest.mark.parametrize("every", [1, 3])
def test_it_is_torchs_averaged_model(every: int) -> None:
    model = a_model()
    average = WeightAverage(model, Ema(decay=0.9, every=every))
    torchs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for step in range(10):
        moved(model, step)
        before = [parameter.clone() for parameter in model.parameters()]
        average.update(step)
        assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
        if (step + 1) % every == 0:
            torchs.update_parameters(model)
    found = average.tensors(model.state_dict())
    for name, tensor in torchs.module.state_dict().items():
        assert torch.equal(found[name], tensor)
    assert not torch.equal(found["0.weight"], model[0].weight)  # the control


def test_bfloat16_weights_are_averaged_in_float32_and_what_is_frozen_is_copied() -> None:
    model = a_model().to(torch.bfloat16)
    model[1].requires_grad_(False)
    average = WeightAverage(model, Ema(decay=0.999))
    for step in range(3):
        moved(model[0], step)
        average.update(step)
    found = average.tensors(model.state_dict())
    assert found["0.weight"].dtype == torch.float32
    assert found["1.weight"] is model.state_dict()["1.weight"] or torch.equal(
        found["1.weight"], model[1].weight
    )
    other = WeightAverage(model, Ema(decay=0.999))
    other.restore(found)
    assert torch.equal(other.tensors(model.state_dict())["0.weight"], found["0.weight"])
