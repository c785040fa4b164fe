"""The direction in which a corpus's rows could move an output: the output's gradient, routed.

A row's gradient g reaches layer group l with the factor c_l = w_l · η / N_l. That is the route's
weight, the learning rate and the group's count of loss targets. An optimizer with second moments
also multiplies by s, one over their root. So the row moves the weights by −c_l · s · g, and the
output's loss to first order by −⟨g, v⟩, with

    v  =  c_l · s · ∇ℓ_out        on the layer groups that the route permits, and nothing elsewhere.

Invariant: a layer group that the route leaves out, or that the output does not read, has no part of
v. Where no group is left, v is empty: the estimate is 0 by construction, whatever the data.

Source: Pruthi et al. 2020, "Estimating Training Data Influence by Tracing Gradient Descent"
(TracInCP). Xia et al. 2024, "LESS: Selecting Influential Data for Targeted Instruction Tuning", for
the optimizer's scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor


def routed_direction(
    gradient: Mapping[str, Tensor],
    groups: Mapping[str, Sequence[str]],
    factors: Mapping[str, float],
    scales: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """v, by parameter.

    Args:
        gradient: The output's, by parameter.
        groups: Layer group → its parameters, adapters' groups included.
        factors: c_l of each layer group that the route permits.
        scales: s of each parameter, of its shape, dtype and device. A parameter without one was
            never moved, and has no part. None for an optimizer that moves along the gradient.

    Returns:
        Parameter → its part, of its shape, in the gradient's dtype.
    """
    found = {}
    for group, factor in factors.items():
        for name in groups.get(group, ()):
            if factor == 0 or name not in gradient:
                continue
            if scales is None:
                found[name] = gradient[name] * factor
            elif name in scales:
                found[name] = gradient[name] * scales[name].to(gradient[name].dtype) * factor
    return found
