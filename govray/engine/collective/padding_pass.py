"""Ghosts: passes over a row of nothing, for a rank that has no rows where others do.

A host whose collectives run in forward or backward needs equal passes on all ranks. A
ghost is one row of zeros, of the shape that rows have, all of its targets ignored; in its
sliced pass no parameter may learn from it, and every gradient that arrives is zero.

The shape is that of the rank's own rows, or of an earlier step's. A rank that never had
any is told by one that has.

Nothing of a row's content goes to another rank.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from govray.engine.batch import IGNORED, MicroBatch
from govray.engine.collective.agreement import Agreement
from govray.engine.gradients.pass_planner import Pass
from govray.engine.gradients.pass_slices import Slices
from govray.errors import Refused

Shape = dict[str, tuple[list[int], str]]
"""Tensor name → dimensions of one row, and dtype."""


class Ghosts:
    """What rows look like, as far as this rank knows.

    Args:
        names: The base model's parameters that may learn.
        device: Of the model.
    """

    def __init__(self, names: Iterable[str], device: torch.device) -> None:
        self._names = tuple(names)
        self._device = device
        self._shape: Shape | None = None

    @property
    def known(self) -> bool:
        """Whether this rank ever saw a row."""
        return self._shape is not None

    def see(self, tensors: Mapping[str, Tensor]) -> None:
        """Remember the shape and dtype of rows.

        Args:
            tensors: By name, each (rows, …), on any device.
        """
        self._shape = {
            name: (list(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch."))
            for name, tensor in tensors.items()
        }

    def learn(self, agreement: Agreement) -> None:
        """Take over the shape from the first rank that knows it. Collective.

        Raises:
            Refused: No rank does, or it is too long to tell.
        """
        told = [text for text in agreement.texts(json.dumps(self._shape)) if text != "null"]
        try:
            shape = json.loads(told[0])
        except (IndexError, ValueError):
            raise Refused(
                "no rank can tell another what rows look like",
                where="ghosts",
                do="Use aggregator: governed, which needs no rows on a rank without any",
            ) from None
        self._shape = self._shape or shape

    def row(self, stream: str) -> Pass:
        """A ghost among the rows of a stream's domain."""
        assert self._shape is not None
        tensors = {
            name: torch.zeros(1, *shape, dtype=getattr(torch, dtype), device=self._device)
            for name, (shape, dtype) in self._shape.items()
        }
        tensors["targets"].fill_(IGNORED)
        nothing = Slices((0.0,), (True,))
        return Pass(
            parts=(MicroBatch(stream, tensors, (0,), (0,)),),
            entries=(None,),
            weights=dict.fromkeys(self._names, 1.0),
            shares=(1.0,),
            adapter=None,
            slices=dict.fromkeys(self._names, nothing),
        )
