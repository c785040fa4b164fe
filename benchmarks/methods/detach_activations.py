"""Gradient routing by detaching activations: one forward, for suffix policies only.

    hidden  =  where(permitted[row], hidden, hidden.detach())

in front of a layer group ends a row's backward there. That is exact only if a route permits all
groups from some group upward. No gradient passes through a forbidden group, so an adapter beside
frozen layers would get none. Backward still computes all rows, some of them with zeros.

Source: Cloud et al. 2024, "Gradient Routing: Masking Gradients to Localize
Computation in Neural Networks".
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from benchmarks.methods.masked import MaskedForward, stages, union
from benchmarks.workload import Workload
from govray.engine.model.gpt import GPT


class DetachActivations(MaskedForward):
    """The cheapest form of masking in the forward pass."""

    def build(self) -> tuple[nn.Module, Mapping[str, nn.Parameter]]:
        """One module around the model."""
        model = self.workload.build_model()
        return CutGPT(model, entries(self.workload)), dict(model.named_parameters())

    @classmethod
    def covers(cls, workload: Workload) -> bool:
        """Suffix policies without adapters."""
        order = list(workload.groups)
        return all(
            route.adapter is None and set(route.groups) == set(order[-len(route.groups) :])
            for route in workload.routes.values()
        )


def entries(workload: Workload) -> dict[str, str]:
    """Profile → the lowest layer group that it may update."""
    return {
        profile: next(group for group in workload.groups if group in route.groups)
        for profile, route in workload.routes.items()
    }


class CutGPT(nn.Module):
    """The built-in GPT, whose backward ends for each row at its profile's entry.

    Args:
        model: Its groups run one after another.
        entries: Profile → the lowest layer group that it may update.
    """

    def __init__(self, model: GPT, entries: Mapping[str, str]) -> None:
        super().__init__()
        self.model = model
        self._entries = dict(entries)

    def forward(self, tokens: Tensor, masks: Mapping[str, Tensor]) -> Tensor:
        """Logits of (rows, tokens)."""
        hidden = tokens
        for group, module in stages(self.model):
            ending = [p for p, entry in self._entries.items() if entry == group]
            if ending and hidden.requires_grad:
                ended = union(masks, ending).view(-1, 1, 1)
                hidden = torch.where(ended, hidden.detach(), hidden)
            hidden = module(hidden)
        return hidden
