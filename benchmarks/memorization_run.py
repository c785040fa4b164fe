"""One seed of the memorization benchmark: train, and measure during and after training.

Training is plain: one process, AdamW, a cosine schedule. A governed step costs more, so the
monitor's share of it is smaller than here.

The monitor is the product's own (`govray.engine.memorization.monitor`); what is flagged is the
product's decision (`govray.governance.record.entropy_profile.decide`) under `SECTION`.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from benchmarks.auroc import auroc, grouped
from benchmarks.memorization_data import (
    OWNER,
    PREFIX,
    SPACE,
    VOCABULARY,
    Corpus,
    Data,
    Recipe,
    Row,
    batch,
    canary_rows,
    canary_tokens,
    candidates,
)
from govray.engine.batch import IGNORED
from govray.engine.collective.agreement import Agreement, Terms
from govray.engine.memorization import exposure
from govray.engine.memorization.deviation import components, composite
from govray.engine.memorization.logit_lens import Lens, find_lens
from govray.engine.memorization.monitor import Monitor, logits_in
from govray.engine.memorization.probe_sharing import Probe, pick
from govray.engine.memorization.scores import (
    OUTPUT,
    RowScores,
    representation_entropy,
    score_rows,
    untouched,
)
from govray.engine.memorization.sequence_loss import target_losses
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.governance.policy.memorization_section import Band, Monitoring
from govray.governance.record.entropy_profile import EntropyProfile, MonitoredCorpus, decide

MEMORIZED = 10.0
"""Exposure, in bits, from which a canary counts as memorized."""

GROUP = 16
_GROUPS = 400
_DIGEST = "sha256:" + "0" * 64
_DOCSTRINGS = "docstrings"


@dataclass(frozen=True)
class Outcome:
    """The results of one seed.

    Attributes:
        exposures: Bits of each ranked canary, by number of repeats.
        entropies: Predictive entropy of each, nats, mean over its digits; equally ordered.
        canaries: Signal → AUROC against exposure, planted and held-out canaries together.
        by_repeats: Repeats → the composite's AUROC, canaries with that many repeats against those
            never planted.
        natural: Signal → AUROC of means of sixteen docstrings, trained on against reserve.
        false_flags: Clean corpora that were flagged.
        clean: Number of clean corpora.
        caught: Whether the docstrings were flagged.
        profile_seconds: Of each profile during training, one corpus measured.
        step_seconds: Of each training step.
    """

    exposures: Mapping[int, list[float]]
    entropies: Mapping[int, list[float]]
    canaries: Mapping[str, float | None]
    by_repeats: Mapping[int, float | None]
    natural: Mapping[str, float | None]
    false_flags: list[str]
    clean: int
    caught: bool
    profile_seconds: list[float]
    step_seconds: list[float]


def section(recipe: Recipe) -> Monitoring:
    """A policy's section: flag if two probes in a row deviate by half a spread."""
    return Monitoring(
        every=recipe.every,
        probe_rows=recipe.probe_rows,
        bands={"*": Band(low=-0.5, high=0.5)},
        consecutive=2,
    )


class Reading:
    """Which rows each step reads, and which clean rows were read so far.

    Args:
        recipe: Sizes.
        data: The seed's.
        seed: Orders the rows.
    """

    def __init__(self, recipe: Recipe, data: Data, seed: int) -> None:
        self._recipe = recipe
        self._draw = random.Random(seed)  # noqa: S311
        self._data = data
        self._docstrings = self._again(
            [row for record in data.docstrings.trained for row in record[:2]]
        )
        self._clean = [
            (name, number, row)
            for name, corpus in data.clean.items()
            for number, record in enumerate(corpus.trained)
            for row in record
        ]
        self._draw.shuffle(self._clean)
        self._planted: dict[int, list[Row]] = {}
        for row in data.canary_rows:
            self._planted.setdefault(self._draw.randrange(recipe.steps), []).append(row)
        self.read: dict[str, list[tuple[int, Row]]] = {name: [] for name in data.clean}

    def step(self, step: int) -> list[Row]:
        """The rows of a step; more than usual if it has many canaries."""
        rows = [
            *self._planted.get(step, []),
            *(next(self._docstrings) for _ in range(self._recipe.docstring_rows)),
        ]
        while len(rows) < self._recipe.rows:
            name, number, row = self._clean.pop()
            self.read[name].append((number, row))
            rows.append(row)
        return rows

    def _again(self, rows: list[Row]) -> Iterator[Row]:
        while True:
            self._draw.shuffle(rows)
            yield from rows


def run_seed(recipe: Recipe, data: Data, seed: int) -> Outcome:
    """Train once and measure."""
    torch.manual_seed(seed)
    model = GPT(recipe.blocks, recipe.width, recipe.context, VOCABULARY, heads=recipe.heads)
    monitor = _monitor(model, seed)
    reading = Reading(recipe, data, seed)
    profiles: list[EntropyProfile] = []
    profile_seconds: list[float] = []
    step_seconds: list[float] = []
    rates = section(recipe)
    names = sorted(data.clean)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(recipe.steps):
        began = time.perf_counter()
        _train(model, optimizer, recipe, step, batch(reading.step(step)))
        step_seconds.append(time.perf_counter() - began)
        if rates.due(step):
            turn = names[(step + 1) // recipe.every % len(names)]
            if len(reading.read[turn]) >= recipe.probe_rows:
                began = time.perf_counter()
                monitor.profile(
                    step,
                    [_clean_probe(recipe, data, reading, turn, step)],
                    section=rates,
                )
                profile_seconds.append(time.perf_counter() - began)
        if rates.due(step) and step >= recipe.steps // 2:
            probes = [
                _clean_probe(recipe, data, reading, name, step)
                for name in names
                if len(reading.read[name]) >= recipe.probe_rows
            ]
            probes.append(_docstring_probe(recipe, data.docstrings, step))
            profiles.append(monitor.profile(step, probes, section=rates))
    flagged = _flagged(profiles, rates, [*names, _DOCSTRINGS])
    scorer = _Scorer(model)
    exposures, entropies, canaries, by_repeats = _canaries(recipe, data, model, scorer, seed)
    return Outcome(
        exposures=exposures,
        entropies=entropies,
        canaries=canaries,
        by_repeats=by_repeats,
        natural=_natural(data.docstrings, scorer, seed),
        false_flags=sorted(flagged - {_DOCSTRINGS}),
        clean=len(names),
        caught=_DOCSTRINGS in flagged,
        profile_seconds=profile_seconds,
        step_seconds=step_seconds,
    )


def _train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    recipe: Recipe,
    step: int,
    tensors: Mapping[str, Tensor],
) -> None:
    warm_up = min(1.0, (step + 1) / 100)
    decay = 0.1 + 0.45 * (1 + math.cos(math.pi * step / recipe.steps))
    for group in optimizer.param_groups:
        group["lr"] = recipe.learning_rate * warm_up * decay
    optimizer.zero_grad()
    loss(model, tensors).mean().backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _monitor(model: nn.Module, seed: int) -> Monitor:
    agreement = Agreement(Terms(policy_digest=_DIGEST, plan_digest=_DIGEST, corpora=()))
    return Monitor(
        model, Adapters(model, {}, seed=seed), agreement, logits=logits_in(loss), seed=seed
    )


def _clean_probe(recipe: Recipe, data: Data, reading: Reading, name: str, step: int) -> Probe:
    reserve = [(n, row) for n, record in enumerate(data.clean[name].reserve) for row in record]
    return _probe(name, reading.read[name], reserve, recipe.probe_rows, step)


def _docstring_probe(recipe: Recipe, corpus: Corpus, step: int) -> Probe:
    sides = [
        [(number, row) for number, record in enumerate(side) for row in record[:2]]
        for side in (corpus.trained, corpus.reserve)
    ]
    return _probe(_DOCSTRINGS, *sides, recipe.probe_rows, step)


def _probe(
    corpus: str,
    read: Sequence[tuple[int, Row]],
    reserve: Sequence[tuple[int, Row]],
    count: int,
    step: int,
) -> Probe:
    """Rows of both sides; each side's records are numbered from 0."""
    ours = [read[i] for i in pick(len(read), count, corpus, step, "read")]
    theirs = [reserve[i] for i in pick(len(reserve), count, corpus, step, "reserve")]
    return Probe(
        corpus=corpus,
        adapter=None,
        probe_units=tuple(f"read {number}" for number, _ in ours),
        reserve_units=tuple(f"reserve {number}" for number, _ in theirs),
        tensors=batch([row for _, row in (*ours, *theirs)]),
    )


def _flagged(
    profiles: Sequence[EntropyProfile], rates: Monitoring, corpora: Sequence[str]
) -> set[str]:
    """Corpora that some profile, after those before it, flags."""
    subjects = {name: MonitoredCorpus(domain="trunk", action="flag") for name in corpora}
    return {
        each.corpus
        for count, profile in enumerate(profiles)
        for each in decide(profile, profiles[:count], rates, subjects)
    }


class _Scorer:
    """Scores rows with a trained model."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._adapters = Adapters(model, {}, seed=0)
        self.lens: Lens = Lens()

    def __call__(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Signal → score of each row, higher if better known; all but the composite."""
        with untouched(self._model):
            self.lens = find_lens(self._model, lambda: self._model(rows["tokens"][:1]))
        scores = score_rows(
            self._model,
            rows,
            logits=logits_in(loss),
            lens=self.lens,
            adapters=self._adapters,
            rows_per_pass=64,
        )
        return {**_signals(scores), "representation_entropy": -self._representation(rows)}

    def _representation(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Matrix entropy of the last state that the lens reads."""
        found: dict[str, Tensor] = {}
        counted = rows["targets"] != IGNORED
        layer = self.lens.layers[-1]

        def read(name: str, state: Tensor) -> None:
            if name == layer:
                found[name] = representation_entropy(state, counted)

        with untouched(self._model), torch.no_grad(), self.lens.states(read):
            self._model(rows["tokens"])
        return found[layer]


def _signals(scores: RowScores) -> dict[str, Tensor]:
    found = {}
    for place, layer in enumerate(scores.layers):
        prefix = "" if layer == OUTPUT else f"{layer} "
        found |= {prefix + name: each for name, each in components(scores, place).items()}
    return found


def _canaries(
    recipe: Recipe, data: Data, model: nn.Module, scorer: _Scorer, seed: int
) -> tuple[
    dict[int, list[float]],
    dict[int, list[float]],
    dict[str, float | None],
    dict[int, float | None],
]:
    """Exposures, entropies, AUROC by signal against exposure, and the composite's AUROC by repeats.

    Half of the held-out canaries are the composite's reference; the others are ranked.
    """
    half = len(data.held_out) // 2
    reference = scorer(canary_rows(data.held_out[:half]))
    ranked = [*data.planted, *data.held_out[half:]]
    signals = scorer(canary_rows(ranked))
    signals["composite"] = composite(_own(signals), _own(reference))

    bits = []
    for canary, own in zip(ranked, _losses(model, ranked).tolist(), strict=True):
        sampled = _losses(model, candidates(canary, recipe.candidates, seed))
        bits.append(exposure.extrapolated(sampled, own, SPACE).bits)
    memorized = [each >= MEMORIZED for each in bits]
    never = len(data.planted)
    by_repeats = {}
    for repeats in recipe.repeats:
        chosen = [n for n, each in enumerate(data.planted.values()) if each == repeats]
        scores = signals["composite"][[*chosen, *range(never, len(ranked))]]
        by_repeats[repeats] = auroc(scores, [n < len(chosen) for n in range(len(scores))])
    exposures: dict[int, list[float]] = {repeats: [] for repeats in (*recipe.repeats, 0)}
    entropies: dict[int, list[float]] = {repeats: [] for repeats in (*recipe.repeats, 0)}
    plantings = [*data.planted.values()] + [0] * (len(ranked) - never)
    for repeats, own, score in zip(plantings, bits, signals["entropy"].tolist(), strict=True):
        exposures[repeats].append(own)
        entropies[repeats].append(-score)
    aurocs = {name: auroc(each, memorized) for name, each in signals.items()}
    return exposures, entropies, aurocs, by_repeats


def _natural(corpus: Corpus, scorer: _Scorer, seed: int) -> dict[str, float | None]:
    """AUROC of means of sixteen docstrings by signal; the first row of each is scored.

    The composite's reference is half of the reserve; the other half is ranked.
    """
    half = len(corpus.reserve) // 2
    reference = scorer(batch([record[0] for record in corpus.reserve[:half]]))
    read = scorer(batch([record[0] for record in corpus.trained]))
    others = scorer(batch([record[0] for record in corpus.reserve[half:]]))
    for each in (read, others):
        each["composite"] = composite(_own(each), _own(reference))
    found = {}
    for name in read:
        generator = torch.Generator().manual_seed(seed)
        sides = [grouped(each[name], GROUP, _GROUPS, generator) for each in (read, others)]
        found[name] = auroc(torch.cat(sides), [True] * _GROUPS + [False] * _GROUPS)
    return found


def _own(signals: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Statistics of the model's own prediction."""
    return {name: signals[name] for name in ("entropy", "surprise", "min_k")}


def _losses(model: nn.Module, canaries: Sequence[str]) -> Tensor:
    """The model's loss on the digits after the owner, in nats."""
    start = 1 + len(PREFIX) + OWNER
    rows = [canary_tokens(each)[:-1] for each in canaries]
    losses = target_losses(model, rows, [start] * len(rows), batch=512)
    return torch.stack([each.sum() for each in losses])
