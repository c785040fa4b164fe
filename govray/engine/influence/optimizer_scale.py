"""What an optimizer with second moments multiplies each gradient by.

Adam and its kin move a weight by η · m̂ / (√v̂ + ε). Over the steps that follow, a row's gradient
enters m with weights that sum to 1. So, with v̂ held as it is, the row moves the weight by
η · g / (√v̂ + ε). Momentum alone adds no scale of its own: that of SGD is a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

_SECOND_MOMENT = "exp_avg_sq"


def optimizer_scale(
    tensors: Mapping[str, Tensor], values: Mapping[str, Any]
) -> dict[str, Tensor] | None:
    """1 / (√v̂ + ε), by parameter; None if the optimizer keeps no second moments.

    Args:
        tensors: Named ``<state key>/<parameter name>``, as a commit holds an optimizer's state.
        values: The rest of that state: ``groups`` with ``parameters`` and ``hyperparameters``.

    Returns:
        Of each parameter that was moved, float64, of its shape and on its device.
    """
    found: dict[str, Tensor] = {}
    for group in values["groups"]:
        hyperparameters = group["hyperparameters"]
        for name in group["parameters"]:
            moment = tensors.get(f"{_SECOND_MOMENT}/{name}")
            if moment is None:
                continue
            steps = float(tensors[f"step/{name}"])
            beta = float(hyperparameters["betas"][1])
            corrected = moment.double() / (1 - beta**steps)
            found[name] = 1 / (corrected.sqrt() + float(hyperparameters["eps"]))
    return found or None
