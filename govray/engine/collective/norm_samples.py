"""One sample of gradient norms, put together from all ranks.

On a sampled step every rank measures its own pieces (``norm_accounting.py``). Here they become one
table over all ranks, the same on each. It has the sum of squared norms per (corpus, layer group).
That is divided by N_l², to describe the gradient that the optimizer saw. A group that some rank
could not measure is in no entry.

It runs after the optimizer step and adds to no number of the training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby

import torch
from torch import Tensor

from govray.engine.batch import MicroBatch
from govray.engine.collective.agreement import Agreement
from govray.engine.collective.routed_model import RoutedModel
from govray.engine.gradients.norm_accounting import Accounting, Piece
from govray.engine.gradients.pass_planner import Pass
from govray.engine.steps.routed import Routed
from govray.engine.steps.step_result import NormSample

_PIECE = 5  # pass, stream, route taken, corpus, rows


class NormSampler:
    """Samples gradient norms in one step of so many."""

    def __init__(self, routed: RoutedModel, agreement: Agreement, every: int) -> None:
        self._routed = routed
        self._agreement = agreement
        self._accounting = Accounting(
            routed.model, routed.group_of, every, adapters=routed.adapters
        )

    def due(self, step: int) -> bool:
        return self._accounting.due(step)

    def begin(self, step: int) -> None:
        """Before the passes of a step: forget what one that failed left behind."""
        if self.due(step):
            self._accounting.squares()

    def measuring(self, each: Pass, step: int) -> AbstractContextManager[None]:
        """Around a pass of a sampled step: measure what each corpus contributes."""
        if not self.due(step) or not all(part.corpora for part in each.parts):
            return nullcontext()
        return self._accounting.measuring(pieces_of(each, self._routed.streams))

    def squares(self, step: int) -> dict[tuple[str, str], Tensor]:
        """What this rank's passes measured; nothing if the step is no sample.
        Each is of shape (), in float64, still on the device."""
        return self._accounting.squares() if self.due(step) else {}

    def sample(
        self,
        step: int,
        passes: Sequence[Pass],
        squares: Mapping[tuple[str, str], float],
        group_targets: Mapping[str, int],
    ) -> NormSample | None:
        """What was measured, if the step is sampled. Collective then."""
        if not self.due(step):
            return None
        return gather(
            self._agreement,
            passes,
            squares,
            group_targets,
            routed=self._routed.streams,
            corpora=self._agreement.terms.corpora,
        )


def pieces_of(each: Pass, routed: Mapping[str, Routed]) -> list[Piece]:
    """The pieces of a pass: runs of rows of one corpus and one stream."""
    pieces: list[Piece] = []
    for part, (start, _) in zip(each.parts, each.spans, strict=True):
        weights = routed[part.route].weights
        for corpus, rows in _runs(part):
            pieces.append(Piece(corpus, start, start + rows, weights))
            start += rows
    return pieces


def gather(
    agreement: Agreement,
    passes: Sequence[Pass],
    squares: Mapping[tuple[str, str], float],
    group_targets: Mapping[str, int],
    *,
    routed: Mapping[str, Routed],
    corpora: Sequence[str],
) -> NormSample:
    """Sum over ranks. Collective.

    Args:
        squares: What it measured, not yet divided. An absent entry of a (corpus, group)
            that its rows may update says that the group could not be measured; so does NaN.
        routed: Digest of a route → the route, in one order on all ranks.
        corpora: All corpora, in one order on all ranks.
    """
    streams, groups = list(routed), list(group_targets)
    own = [
        [
            place,
            streams.index(part.stream),
            streams.index(part.route),
            corpora.index(corpus),
            rows,
        ]
        for place, each in enumerate(passes)
        for part in each.parts
        for corpus, rows in _runs(part)
    ]
    table = torch.zeros(len(corpora), len(groups), dtype=torch.float64)
    for _, _, route, corpus, _ in own:
        for group in routed[streams[route]].groups:
            square = squares.get((corpora[corpus], group), math.nan)
            table[corpus, groups.index(group)] = square
    total = torch.stack(agreement.exchange(table)).sum(0)

    counts = [int(n) for n in agreement.exchange(torch.tensor([len(own)]))]
    padded = torch.zeros(max(counts), _PIECE, dtype=torch.int64)
    if own:
        padded[: len(own)] = torch.tensor(own, dtype=torch.int64)
    pieces: dict[tuple[int, int, str], dict[str, int]] = {}
    updated: set[tuple[str, str]] = set()
    for rank, (rows_of_rank, count) in enumerate(
        zip(agreement.exchange(padded), counts, strict=True)
    ):
        for place, stream, route, corpus, rows in rows_of_rank[:count].tolist():
            held = pieces.setdefault((rank, place, streams[stream]), {})
            held[corpora[corpus]] = held.get(corpora[corpus], 0) + rows
            updated |= {(corpora[corpus], group) for group in routed[streams[route]].groups}
    divided = {
        (corpus, group): float(total[corpora.index(corpus), groups.index(group)])
        / group_targets[group] ** 2
        for corpus, group in sorted(updated)
        if group_targets[group]  # rows may all be masked, and then nothing is updated
    }
    return NormSample(
        pieces=tuple((rank, stream, held) for (rank, _, stream), held in pieces.items()),
        squares={key: square for key, square in divided.items() if math.isfinite(square)},
    )


def _runs(part: MicroBatch) -> list[tuple[str, int]]:
    """(corpus, rows) of consecutive rows."""
    return [(corpus, len(list(run))) for corpus, run in groupby(part.corpora)]
