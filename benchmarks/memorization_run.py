"""One run of the memorization benchmark: train, and measure during and after training.

The monitor is the product's own (`govray.engine.memorization.monitor`), and so is what is flagged
(``memorization_decision.py``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.auroc import auroc, grouped
from benchmarks.membership.token_statistics import token_statistics
from benchmarks.memorization_data import (
    OWNER,
    PREFIX,
    SEPARATOR,
    SPACE,
    Corpus,
    Data,
    Recipe,
    batch,
    canary_rows,
    canary_tokens,
    candidates,
)
from benchmarks.memorization_decision import Decided, Watch
from benchmarks.memorization_families import Family, gpt
from benchmarks.memorization_ranking import GROUP, GROUPS, Ranking, rank
from benchmarks.memorization_references import reference_models
from benchmarks.memorization_training import DOCSTRINGS, Reading, train
from govray.engine.batch import IGNORED
from govray.engine.collective.agreement import Agreement, Terms
from govray.engine.memorization import exposure
from govray.engine.memorization.comparison import components, composite
from govray.engine.memorization.logit_lens import Lens, find_lens
from govray.engine.memorization.monitor import Monitor, logits_in
from govray.engine.memorization.scores import (
    OUTPUT,
    RowScores,
    score_rows,
    untouched,
)
from govray.engine.memorization.sequence_loss import target_losses
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import loss
from govray.governance.policy.memorization_section import Monitoring

MEMORIZED = 10.0
"""Exposure, in bits, from which a canary counts as memorized."""

_DIGEST = "sha256:" + "0" * 64


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
        rankings: Method → how well it ranks rows that were read often above rows never read.
        decided: What was flagged.
        clean: Number of clean corpora.
        profile_seconds: Of each profile during training, one corpus measured.
        step_seconds: Of each training step.
    """

    exposures: Mapping[int, list[float]]
    entropies: Mapping[int, list[float]]
    canaries: Mapping[str, float | None]
    by_repeats: Mapping[int, float | None]
    natural: Mapping[str, float | None]
    rankings: Mapping[str, Ranking]
    decided: Decided
    clean: int
    profile_seconds: list[float]
    step_seconds: list[float]


def run_seed(recipe: Recipe, data: Data, seed: int, section: Monitoring) -> Outcome:
    """Train the built-in model once, and measure all there is to measure.

    Args:
        recipe: Sizes.
        data: The seed's.
        seed: Of weights, order and draws.
        section: What is measured during training, and what follows.
    """
    torch.manual_seed(seed)
    model = gpt(recipe)
    monitor = _monitor(model, seed)
    reading = Reading(recipe, data, seed)
    watch = Watch(recipe, data, reading, section)
    profile_seconds: list[float] = []
    names = sorted(data.clean)

    def measure(step: int) -> None:
        if (step + 1) % recipe.every == 0:
            turn = names[(step + 1) // recipe.every % len(names)]
            probe = watch.probe(turn, step, recipe.probe_rows)
            if len(probe.probe_units) == recipe.probe_rows:
                began = time.perf_counter()
                monitor.profile(step, [probe], section=section)
                profile_seconds.append(time.perf_counter() - began)
        watch.after(step, monitor)

    step_seconds = train(model, recipe, reading, measure)
    scorer = _Scorer(model)
    exposures, entropies, canaries, by_repeats = _canaries(recipe, data, model, scorer, seed)
    return Outcome(
        exposures=exposures,
        entropies=entropies,
        canaries=canaries,
        by_repeats=by_repeats,
        natural=_natural(data.docstrings, scorer, seed),
        rankings=_rankings(recipe, data, model, reading, seed, gpt),
        decided=watch.decided(),
        clean=len(names),
        profile_seconds=profile_seconds,
        step_seconds=step_seconds,
    )


def rank_seed(recipe: Recipe, data: Data, seed: int, family: Family) -> dict[str, Ranking]:
    """Train a model of any family once, and rank rows at the end.

    Args:
        recipe: Sizes.
        data: The seed's.
        seed: Of weights, order and draws.
        family: Makes the model.
    """
    torch.manual_seed(seed)
    model = family(recipe)
    reading = Reading(recipe, data, seed)
    train(model, recipe, reading)
    return _rankings(recipe, data, model, reading, seed, family)


def _rankings(
    recipe: Recipe, data: Data, model: nn.Module, reading: Reading, seed: int, family: Family
) -> dict[str, Ranking]:
    """The first rows of records that were read again and again, against those of others."""
    counts = Counter(tuple(row) for _, row in reading.read[DOCSTRINGS])
    ours = [record[0] for record in data.docstrings.trained if counts[tuple(record[0])]]
    theirs = [record[0] for record in data.others if not counts[tuple(record[0])]]
    rows = [*ours, *theirs]
    models = reference_models(recipe, data, seed, family)
    return rank(
        token_statistics(model, rows),
        [token_statistics(each, rows) for each in models],
        [bytes(token for token in row if token != SEPARATOR) for row in rows],
        [counts[tuple(row)] for row in ours] + [0] * len(theirs),
        units=token_statistics(model, [record[0] for record in data.docstrings.reserve]),
        seed=seed,
    )


def _monitor(model: nn.Module, seed: int) -> Monitor:
    agreement = Agreement(Terms(policy_digest=_DIGEST, plan_digest=_DIGEST, corpora=()))
    return Monitor(
        model, Adapters(model, {}, seed=seed), agreement, logits=logits_in(loss), seed=seed
    )


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


def representation_entropy(states: Tensor, counted: Tensor) -> Tensor:
    """Matrix entropy of a row's hidden states, nats: (rows, tokens, width) → (rows,).

    It is the entropy of the eigenvalues of the states' Gram matrix, with each state scaled to
    length 1 and the matrix to trace 1.

    Args:
        states: Of a floating dtype. The result is float64.
        counted: Which tokens count: bool, (rows, tokens), on the same device.

    Source: Skean et al. 2025, "Layer by Layer: Uncovering Hidden Representations in
    Language Models" (matrix-based entropy, α → 1).
    """
    unit = F.normalize(states.double(), dim=-1) * counted.unsqueeze(-1)
    gram = unit @ unit.transpose(1, 2) / counted.sum(-1).view(-1, 1, 1)
    return torch.special.entr(torch.linalg.eigvalsh(gram).clamp_min(0.0)).sum(-1)


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
        sides = [grouped(each[name], GROUP, GROUPS, generator) for each in (read, others)]
        found[name] = auroc(torch.cat(sides), [True] * GROUPS + [False] * GROUPS)
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
