"""The gradients that a step computes with: none from before it, and none left after it.

A step visits the parameters that it can reach, and not those of adapters that it does not train.
There may be thousands, and visiting each could take longer than a forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


class FreshGradients:
    """Inside this context, ``.grad`` of its parameters is the step's own.
    ``parameters``: by name, those that this rank's passes can reach."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters: dict[str, nn.Parameter] = {}
        self.include(parameters)

    def include(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Take more parameters in; a gradient that a new one has is dropped now."""
        new = {name: p for name, p in parameters.items() if name not in self._parameters}
        _drop(new)
        self._parameters |= new

    def __enter__(self) -> FreshGradients:
        return self

    def __exit__(self, *_: object) -> None:
        _drop(self._parameters)


def _drop(parameters: Mapping[str, nn.Parameter]) -> None:
    for parameter in parameters.values():
        parameter.grad = None
