"""What the parts of a sliced pass may do at each parameter, and whether such a pass pays.

A sliced pass (``sliced_pass.py``) takes rows of several route streams through the model together.
Which of them a parameter learns from follows from their routes. The order of the layer groups
decides which of them need a gradient through a layer. They are those that learn in the layer's own
group, or in one below it.

The order is that of ``layer_groups``, bottom first. It says nothing of a tensor tied between two
groups, of a policy's own group, or of an adapter, which sits in every block. There all rows are
taken to need a gradient, which costs time and no exactness.

The model itself is not looked at. If it calls its layers in another order, the trial
(``pass_check.py``) finds other gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from govray.engine.steps.routed import Routed

WRITE_TOKENS = 64.0
"""How many tokens, carried between the matrices of a layer in backward, cost as much as adding
one more gradient to each of its parameters.

On a CPU a sliced pass and a pass for each stream are about even (``python -m benchmarks.slicing``;
docs/performance.md has figures). So the value is cautious: a sliced pass has to save many gradients
before it is chosen."""


@dataclass(frozen=True)
class Slices:
    """What each part of a sliced pass may do at one parameter.

    Attributes:
        weights: Its route's weight; 0 where it is forbidden.
        flow: Whether it learns here or below.
    """

    weights: tuple[float, ...]
    flow: tuple[bool, ...]

    def everywhere(self) -> Slices:
        """The same weights, and a gradient through the layer for every part: always exact."""
        return Slices(self.weights, (True,) * len(self.flow))


def in_order(groups: Sequence[str]) -> bool:
    """Whether every layer group is used at one place only, bottom first."""
    return all(
        group in ("embedding", "final_norm", "head") or group.startswith("block.")
        for group in groups
    )


def floor(routed: Routed, groups: Sequence[str]) -> int:
    """Place of the lowest layer group that rows of a route learn in; 0 where that is unknown.
    ``groups``: those of the base model, in canonical order."""
    if routed.adapter is not None or not in_order(groups):
        return 0
    return next(place for place, group in enumerate(groups) if group in routed.groups)


def slices_of(
    routes: Sequence[Routed], groups: Mapping[str, Sequence[str]], names: Sequence[str]
) -> dict[str, Slices]:
    """Parameter name → what each part may do there.

    Args:
        groups: Layer group → FQNs of the base model, in canonical order.
        names: The base model's parameters that may learn from some part, or in whose
            layers others must not.
    """
    place_of = {name: place for place, members in enumerate(groups.values()) for name in members}
    floors = [floor(route, tuple(groups)) for route in routes]
    return {
        name: Slices(
            tuple(route.weights.get(name, 0.0) for route in routes),
            tuple(lowest <= place_of[name] for lowest in floors),
        )
        for name in names
    }


def slicing_pays(
    tokens: Sequence[int], slices: Mapping[str, Slices], sizes: Mapping[str, int]
) -> bool:
    """Whether a sliced pass is estimated to cost less than its parts by themselves.

    The matrix products are the same. By itself every part adds a gradient to each parameter it may
    update. In a sliced pass neighbours of equal weight write one together, which is ``saved``. But
    the rows of a part that learns nowhere so low are carried through what is between the matrices
    wherever another part's are: ``carried``. That work grows with the tokens and, nearly, with the
    matrices.

    Args:
        tokens: Places for loss targets of each part: its rows times their length.
    """
    saved = carried = 0
    for name, each in slices.items():
        runs = [weight for weight, _ in groupby(each.weights) if weight]
        saved += sizes[name] * (sum(map(bool, each.weights)) - len(runs))
        if any(each.flow):
            carried += sizes[name] * sum(
                count for count, flows in zip(tokens, each.flow, strict=True) if not flows
            )
    return carried < WRITE_TOKENS * saved
