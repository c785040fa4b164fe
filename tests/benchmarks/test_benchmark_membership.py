"""Baselines of membership: each ranks a planted difference, and finds none where there is none."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from benchmarks.auroc import auroc
from benchmarks.membership.bag_of_words import bag_of_words
from benchmarks.membership.lira import lira
from benchmarks.membership.low_false_positives import true_positive_rate
from benchmarks.membership.min_k import min_k, min_k_plus_plus
from benchmarks.membership.plain_loss import plain_loss
from benchmarks.membership.token_statistics import TokenStatistics, token_statistics
from benchmarks.membership.zlib_loss import zlib_loss
from benchmarks.memorization_ranking import METHODS, OFTEN, averaged, rank
from govray.engine.memorization.deviation import components
from govray.engine.memorization.logit_lens import Lens
from govray.engine.memorization.scores import score_rows
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT

ROWS, TOKENS = 400, 24
SIDES = [True] * (ROWS // 2) + [False] * (ROWS // 2)
TEXTS = [bytes(random.Random(n).choices(b"abcdefgh ", k=TOKENS)) for n in range(ROWS)]


def statistics(better: float, seed: int = 0, rows: int = ROWS) -> TokenStatistics:
    """Of random tokens; the first half's are likelier by ``better`` nats."""
    draw = torch.Generator().manual_seed(seed)

    def noise() -> Tensor:
        return torch.randn(rows, TOKENS, generator=draw, dtype=torch.float64)

    mean = -2 + 0.3 * noise()
    log_p = mean + noise()
    log_p[: rows // 2] += better
    return TokenStatistics(log_p=log_p - 3, mean=mean - 3, sigma=torch.ones_like(mean))


def of_lira(found: TokenStatistics) -> Tensor:
    return lira(found, [statistics(0.0, seed) for seed in (1, 2)])


SCORES: list[Callable[[TokenStatistics], Tensor]] = [
    plain_loss,
    lambda found: zlib_loss(found, TEXTS),
    min_k,
    min_k_plus_plus,
    of_lira,
]


@pytest.mark.parametrize("score", SCORES)
def test_a_planted_difference_is_ranked(score: Callable[[TokenStatistics], Tensor]) -> None:
    found = auroc(score(statistics(0.7)), SIDES)
    assert found is not None
    assert found > 0.9


@pytest.mark.parametrize("score", SCORES)
def test_without_a_difference_nothing_is_ranked(score: Callable[[TokenStatistics], Tensor]) -> None:
    found = auroc(score(statistics(0.0)), SIDES)
    assert found == pytest.approx(0.5, abs=0.09)  # three standard deviations


def test_a_reference_removes_what_makes_rows_easy_for_any_model() -> None:
    """Rows that differ more in difficulty than in membership: only LiRA tells them apart."""
    difficulty = 3 * torch.rand(ROWS, 1, generator=torch.Generator().manual_seed(9)).double()

    def harder(found: TokenStatistics) -> TokenStatistics:
        return TokenStatistics(found.log_p - difficulty, found.mean - difficulty, found.sigma)

    own = harder(statistics(0.7))
    references = [harder(statistics(0.0, seed)) for seed in (1, 2)]
    with_references, alone = auroc(lira(own, references), SIDES), auroc(plain_loss(own), SIDES)
    assert with_references is not None
    assert alone is not None
    assert with_references > 0.9
    assert alone < 0.8


def test_min_k_reads_the_least_likely_tokens_alone() -> None:
    log_p = torch.tensor([[-1.0, -9.0, -2.0, -3.0, -4.0]], dtype=torch.float64)
    found = TokenStatistics(log_p, torch.zeros_like(log_p), torch.full_like(log_p, 2.0))
    assert min_k(found).tolist() == [-9]
    assert min_k(found, 0.4).tolist() == [-6.5]
    assert min_k_plus_plus(found).tolist() == [-4.5]


def test_a_dull_text_needs_a_better_loss_by_zlib() -> None:
    log_p = torch.full((2, TOKENS), -1.0, dtype=torch.float64)
    found = TokenStatistics(log_p, log_p, log_p)
    dull, rich = zlib_loss(found, [b"a" * TOKENS, TEXTS[0]])
    assert dull < rich < 0


def test_words_alone_tell_sides_of_different_words_apart() -> None:
    draw = random.Random(0)

    def text(words: str) -> bytes:
        return " ".join(draw.choices(words, k=6)).encode()

    other = [text("abcdef") if side else text("defghi") for side in SIDES]
    alike = [text("abcdef") for _ in SIDES]
    apart, same = auroc(bag_of_words(other, SIDES), SIDES), auroc(bag_of_words(alike, SIDES), SIDES)
    assert apart is not None
    assert apart > 0.95
    assert same == pytest.approx(0.5, abs=0.09)


def test_words_are_ranked_by_other_texts_alone() -> None:
    """A word of one text says nothing of it: fitted on itself, each would be ranked perfectly."""
    unique = [f"word{n}".encode() for n in range(ROWS)]
    assert auroc(bag_of_words(unique, SIDES), SIDES) == 0.5


def test_few_false_positives_are_counted_not_interpolated() -> None:
    scores = torch.cat(
        [torch.tensor([5.0, 3.0, 1.5, 0.5]), torch.linspace(0, 1, 999), torch.tensor([2.0])]
    )
    sides = [True] * 4 + [False] * 1000
    assert true_positive_rate(scores, sides) == 0.75  # one of 1,000 may be above: the one at 2
    assert true_positive_rate(scores, sides, 0.01) == 0.75
    assert true_positive_rate(scores[:-1], sides[:-1]) is None  # too few to say
    assert true_positive_rate(scores[4:], sides[4:]) is None


def test_what_a_model_says_of_tokens_is_what_the_product_scores() -> None:
    torch.manual_seed(0)
    model = GPT(2, 16, 8, 11, heads=2)
    rows = torch.randint(0, 11, (5, 9))
    found = token_statistics(model, rows.tolist(), batch=2)
    tensors = {"tokens": rows[:, :-1], "targets": rows[:, 1:]}

    def logits(module: nn.Module, given: dict[str, Tensor]) -> Tensor:
        return module(given["tokens"])

    scores = score_rows(
        model, tensors, logits=logits, lens=Lens(), adapters=Adapters(model, {}, seed=0)
    )
    ours = components(scores, 0)
    assert torch.allclose(min_k_plus_plus(found), ours["min_k"], atol=1e-5)
    assert torch.allclose(found.normalised.mean(1), ours["surprise"], atol=1e-5)
    assert torch.allclose(found.mean.mean(1), ours["entropy"], atol=1e-5)


def test_methods_are_ranked_over_the_same_rows_by_how_often_they_were_read() -> None:
    reads = [OFTEN if n % 2 else 2 for n in range(ROWS // 2)] + [0] * (ROWS // 2)
    found = statistics(0.7)
    given = (found, [statistics(0.0, 1)], TEXTS, reads)
    ranked = rank(*given, units=statistics(0.0, 3, 64), seed=0)
    assert list(ranked) == list(METHODS)
    for name in set(METHODS) - {"bag_of_words"}:
        assert ranked[name].auroc == ranked[name].auroc_by_reads[OFTEN] > 0.9
        assert ranked[name].auroc_of_means == 1
        assert ranked[name].true_positive_rate is None
        assert ranked[name].auroc_by_reads.keys() == {2, OFTEN}
    assert ranked["bag_of_words"].auroc == pytest.approx(0.5, abs=0.12)
    assert averaged([ranked["loss"], ranked["loss"]]) == ranked["loss"]
