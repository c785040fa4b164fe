"""Ways to lose non-interference, for negative controls: each replaces one piece of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from govray.engine import step as step_module
from govray.engine.collective.gradient_clip import GradientClip
from govray.engine.startup.weight_watch import WeightWatch


def global_clip(patch: pytest.MonkeyPatch) -> None:
    def clip(self, norms):
        live = [p for p in self._routed.parameters.values() if p.grad is not None]
        clip_grads_with_norm_(live, self._clip_norm, get_total_norm([p.grad for p in live]))

    patch.setattr(GradientClip, "clip", clip)


def zero_instead_of_absent(patch: pytest.MonkeyPatch) -> None:
    """Let the optimizer step every parameter whenever any row was read."""

    @contextmanager
    def with_zeros(
        optimizer: torch.optim.Optimizer, trained: list[nn.Parameter], *others: object
    ) -> Iterator[None]:
        if list(trained):
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        yield

    patch.setattr(step_module, "optimizer_view", with_zeros)
    patch.setattr(WeightWatch, "stepping", lambda *_, **__: nullcontext())  # which would refuse it
    patch.setattr(WeightWatch, "look", lambda *_: None)
