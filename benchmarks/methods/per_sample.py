"""Per-row gradients, masked and summed: what differential-privacy tooling makes easy.

``torch.func.vmap(grad(...))`` gives every row its own gradient of every parameter. Each group's
gradients are summed over the rows that may update it. One explicit all-reduce sums them over ranks;
then they are divided by N_l. Rows with an adapter go through a call of their own, so that the
others don't pay for it. The counts come from the case.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from benchmarks.batch import Batch
from benchmarks.cases import ADAPTER_NAME, ADAPTER_RANK
from benchmarks.methods.lora import RowLora
from benchmarks.methods.method import Method
from benchmarks.methods.reduce import sum_over_ranks
from benchmarks.workload import Workload
from govray.governance.policy.route import ADAPTER


class PerSample(Method):
    """vmap over rows, then a masked sum."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self._model = workload.build_model()
        self._base = dict(self._model.named_parameters())
        self._lora = RowLora(self._model, ADAPTER_NAME, ADAPTER_RANK) if workload.adapter else None
        self.optimize(self._base | (self._lora.named_parameters() if self._lora else {}))

    def step(self, batch: Batch) -> None:
        """Gradients of all rows, masked sums, all-reduce, optimizer."""
        sums = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        for adapted in (False, True):
            profiles = [
                profile
                for profile, route in self.workload.routes.items()
                if (route.adapter is not None) == adapted and batch.positions[profile]
            ]
            if profiles:
                self._add(batch, profiles, adapted, sums)
        sum_over_ranks(list(sums.values()))
        for name, parameter in self.parameters.items():
            count = self.workload.group_targets[self.workload.group_of(name)]
            parameter.grad = sums[name] / count
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _add(
        self, batch: Batch, profiles: list[str], adapted: bool, sums: dict[str, Tensor]
    ) -> None:
        """Add the permitted gradients of some profiles' rows to ``sums``."""
        parts = [batch.rows(profile) for profile in profiles]
        tokens, targets = (
            torch.cat([part[name] for part in parts]) for name in ("tokens", "targets")
        )
        parameters = {
            name: parameter.detach()
            for name, parameter in self.parameters.items()
            if adapted or not name.startswith(ADAPTER)
        }
        by_row: dict[str, Tensor]
        with warnings.catch_warnings():
            # On the CPU fused attention runs row by row; the unfused kind is no faster here.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            by_row = vmap(grad(self._row_loss), in_dims=(None, 0, 0))(parameters, tokens, targets)
        for name, gradients in by_row.items():
            group = self.workload.group_of(name)
            mask = torch.cat(
                [
                    gradients.new_full(
                        (len(part["tokens"]),), group in self.workload.routes[profile].groups
                    )
                    for profile, part in zip(profiles, parts, strict=True)
                ]
            )
            sums[name] += torch.tensordot(mask, gradients, dims=1)

    def _row_loss(
        self, parameters: Mapping[str, Tensor], tokens: Tensor, targets: Tensor
    ) -> Tensor:
        base = {name: parameters[name] for name in self._base}
        row = {"tokens": tokens[None], "targets": targets[None]}

        def model(tokens: Tensor) -> Tensor:
            return functional_call(self._model, base, (tokens,))

        if self._lora is None or len(parameters) == len(base):
            return self.workload.losses(model, row).sum()
        with self._lora.active(pairs=self._lora.as_pairs(parameters)):
            return self.workload.losses(model, row).sum()
