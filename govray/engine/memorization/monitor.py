"""Measures corpora in a run, on all ranks together.

Every rank scores its part of each probe's rows, one exchange gathers the scores, and
every rank makes the same entropy profile of them.

Invariants:

* A profile is collective, and every rank does equally many forward passes in it,
  whatever rows it has: a forward may be collective itself.
* An error on one rank is raised on all, the same.
* The training goes on as if no profile had been made (``scores.untouched``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from govray.engine.collective.agreement import Agreement, RankFailure
from govray.engine.gradients.forward import LossFn
from govray.engine.memorization.comparison import measures
from govray.engine.memorization.logit_lens import Lens, find_lens
from govray.engine.memorization.probe_sharing import Probe, most_rows, own_probe_rows
from govray.engine.memorization.scores import (
    OUTPUT,
    ROWS_PER_PASS,
    Logits,
    RowScores,
    score_rows,
    untouched,
)
from govray.engine.model.adapters import Adapters
from govray.errors import RankFailed, UsageError
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.record.entropy_profile import EntropyProfile, Measure


class Monitor:
    """Makes the entropy profiles of one run on this rank.
    ``logits``: how the model is called; ``logits_in(loss_fn)`` for a loss function's way."""

    def __init__(
        self,
        model: nn.Module,
        adapters: Adapters,
        agreement: Agreement,
        *,
        logits: Logits,
        seed: int,
        rows_per_pass: int = ROWS_PER_PASS,
    ) -> None:
        self._model = model
        self._adapters = adapters
        self._agreement = agreement
        self._logits = logits
        self._seed = seed
        self._rows_per_pass = rows_per_pass
        self._lens: Lens | None = None

    @property
    def lens(self) -> Lens | None:
        """The model's lens, once a profile was made. Its ``missing`` says why it has none."""
        return self._lens

    def profile(
        self, step: int, probes: Sequence[Probe], *, section: Monitoring, branch: int = 0
    ) -> EntropyProfile:
        """Measure these corpora with the model as it is. Collective.

        Args:
            step: The last step that the weights hold.
            probes: At least one, in one order on all ranks, each corpus once.

        Raises:
            RankFailed: A rank could not read or score its rows, or a score is not finite.
            UsageError: A probe's rows have no loss target, or one side has none.
            Refused: The model's forward changed a buffer.
        """
        if self._lens is None:
            self._lens = self._find(step, probes)
        layers = (*self._lens.layers, OUTPUT)
        table = torch.zeros(sum(map(len, probes)), 3 * len(layers), dtype=torch.float64)
        failure = None
        try:
            first = 0
            for probe in probes:
                own = own_probe_rows(len(probe), self._agreement.rank, self._agreement.world_size)
                table[first + own.start : first + own.stop] = self._score(probe).table()
                first += len(probe)
        except BaseException as error:  # whatever it is, the other ranks must hear of it
            failure = RankFailure.of(error)
        table = self._agreement.conclude(step, table, failure)
        found: list[Measure] = []
        for probe, rows in zip(probes, table.split([len(each) for each in probes]), strict=True):
            found += self._measures(step, probe, RowScores.of_table(layers, rows), section)
        return EntropyProfile(
            branch=branch,
            step=step,
            statistic=section.statistic,
            measures=tuple(sorted(found, key=lambda each: each.place)),
        )

    def _score(self, probe: Probe) -> RowScores:
        assert self._lens is not None
        most = most_rows(len(probe), self._agreement.world_size)
        return score_rows(
            self._model,
            _tensors(probe),
            logits=self._logits,
            lens=self._lens,
            adapters=self._adapters,
            adapter=probe.adapter,
            rows_per_pass=self._rows_per_pass,
            passes=-(-most // self._rows_per_pass),
        )

    def _measures(
        self, step: int, probe: Probe, scores: RowScores, section: Monitoring
    ) -> tuple[Measure, ...]:
        if not scores.table().isfinite().all():
            raise RankFailed(
                f"a score of corpus {probe.corpus} is not finite",
                where=f"entropy profile after step {step}",
                do="See whether the loss is finite",
            )
        trained = len(probe.probe_units)
        return measures(
            probe.corpus,
            scores[:trained],
            scores[trained:],
            probe_units=probe.probe_units,
            reserve_units=probe.reserve_units,
            statistic=section.statistic,
            key=(self._seed, step),
            tested=probe.tested,
        )

    def _find(self, step: int, probes: Sequence[Probe]) -> Lens:
        """The lens, found on one row and agreed on. Collective."""
        lens, failure = Lens(), None
        try:
            rows = {
                name: torch.cat([each[:1], each.new_zeros(1, *each.shape[1:])])
                for name, each in _tensors(probes[0]).items()
            }
            with untouched(self._model), torch.no_grad(), self._adapters.active(None):
                lens = find_lens(self._model, lambda: self._logits(self._model, rows))
        except BaseException as error:
            failure = RankFailure.of(error)
        own = torch.tensor([float(len(lens.layers))], dtype=torch.float64)
        self._agreement.conclude(step, own, failure)
        counts = {int(row) for row in self._agreement.exchange(own)}
        return lens if len(counts) == 1 else Lens(missing="the ranks found different lenses")


def logits_in(loss_fn: LossFn) -> Logits:
    """The logits that a loss function gets from the model.

    It works for loss functions that call the model once, with rows in the first
    dimension, and get logits, or something with ``.logits``, from it.
    """

    def logits(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        outputs: list[Any] = []
        handle = model.register_forward_hook(lambda module, args, output: outputs.append(output))
        try:
            loss_fn(model, tensors)
        finally:
            handle.remove()
        found = [getattr(each, "logits", each) for each in outputs]
        if len(found) != 1 or not isinstance(found[0], Tensor):
            raise UsageError(
                f"loss_fn calls the model {len(found)} times"
                if len(found) != 1
                else f"the model returns {type(found[0]).__name__}, not logits",
                where="memorization monitor",
                do="Call the model once in loss_fn, and let it return logits",
            )
        return found[0]

    return logits


def _tensors(probe: Probe) -> Mapping[str, Tensor]:
    if probe.tensors is None:
        raise RankFailed(probe.error or "no rows were read", where=f"probe of {probe.corpus}")
    return probe.tensors
