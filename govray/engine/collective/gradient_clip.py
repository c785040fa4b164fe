"""What is looked at and done between the division by N_l and the optimizer: norms, and clipping.

Each domain is clipped by its own norm, so what its weights become depends on its own rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_

from govray.engine.collective.aggregator import Governed
from govray.engine.collective.agreement import Agreement
from govray.engine.collective.allreduce import Domain, first_nonfinite
from govray.engine.collective.routed_model import RoutedModel
from govray.errors import RankFailed


class GradientClip:
    """Clips the gradients of a step, which are of the shape, dtype and device of their parameters.

    A norm is a scalar on the device of its gradients.

    Args:
        clip_norm: Largest gradient norm of a domain; None does not clip.
    """

    def __init__(
        self,
        routed: RoutedModel,
        aggregator: Governed,
        agreement: Agreement,
        clip_norm: float | None,
    ) -> None:
        self._routed = routed
        self._aggregator = aggregator
        self._agreement = agreement
        self._clip_norm = clip_norm

    def norms(self, live: Sequence[Domain]) -> dict[str, Tensor]:
        """Domain → the gradient norm before clipping, of each that has one. Collective."""
        norms = {}
        for domain in live:
            gradients = _present({name: p.grad for name, p in domain.parameters.items()})
            if gradients:
                norms[domain.name] = self._aggregator.norm(gradients)
        return norms

    def stays(self, norms: Mapping[str, Tensor]) -> Tensor | None:
        """What tells the optimizer on the device to move nothing: 1 if a norm is not finite, else
        0. Shape (), float32, on the norms' device; None without norms."""
        if not norms:
            return None
        finite = torch.stack([norm.double() for norm in norms.values()]).isfinite().all()
        return finite.logical_not().float()

    def require_finite(
        self,
        step: int,
        norms: Mapping[str, float],
        largest: Mapping[str, Tensor],
        *,
        moved: bool = False,
    ) -> None:
        """Raise on all ranks alike, for they hold the same sums. Collective if one is not finite.

        Args:
            largest: What `Governed.largest` was in that step.
            moved: Whether the optimizer was called, and the gradients are gone.

        Raises:
            RankFailed: Names the first gradient that is not finite, and whose it is. After the
                optimizer a norm that is not finite is one too, for `stays` held everything.
        """
        odd = [domain for domain, norm in norms.items() if not math.isfinite(norm)]
        if not odd:
            return
        parameters = self._routed.parameters
        held = {} if moved else _present({name: p.grad for name, p in parameters.items()})
        summed = {name: self._aggregator.local(gradient) for name, gradient in held.items()}
        names = list(parameters)
        own = {name: largest[name] for name in names if name in largest}
        found = [first_nonfinite(own), first_nonfinite(summed)]
        row = torch.tensor([-1 if name is None else names.index(name) for name in found])
        rows = [each.tolist() for each in self._agreement.exchange(row)]
        for rank, (first, _) in enumerate(rows):
            if first >= 0:
                raise RankFailed(
                    f"the gradient of {names[first]} is not finite",
                    where=f"rank {rank}, step {step}",
                    do="All ranks stopped before any weight moved. Lower the learning rate, "
                    "or look at this step's rows",
                )
        for _, first in rows:
            if first >= 0:
                raise RankFailed(
                    f"the gradient of {names[first]} is finite on every rank, but its sum over "
                    "ranks is not",
                    where=f"step {step}",
                    do="Lower the learning rate, or use a dtype with a larger range",
                )
        if moved:
            raise RankFailed(
                f"the gradient of domain {odd[0]} is finite on every rank, but its sum over ranks "
                "or its norm is not",
                where=f"step {step}",
                do="No weight moved. Lower the learning rate, or use a dtype with a larger range",
            )
        # Otherwise gradients are finite, and only their norm overflows.

    def clip(self, norms: Mapping[str, Tensor]) -> None:
        """Clip each domain that has a norm by that norm."""
        if self._clip_norm is None:
            return
        held = self._aggregator.held
        for domain in self._routed.domains:
            if domain.name not in norms:
                continue
            for mine in (True, False):  # torch does not scale shards and whole tensors together
                parameters = [p for n, p in domain.parameters.items() if (n in held) != mine]
                clip_grads_with_norm_(parameters, self._clip_norm, norms[domain.name])


def _present(gradients: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    return {name: gradient for name, gradient in gradients.items() if gradient is not None}
