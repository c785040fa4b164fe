"""Exposure: its arithmetic, the extrapolation against the exact value, and what a model shows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from govray.engine.memorization import exposure
from govray.engine.memorization.exposure import SkewNormal, bits, exact, extrapolated, measure
from govray.engine.memorization.sequence_loss import continuations
from govray.engine.model.gpt import GPT
from govray.errors import UsageError
from tests.support.table import each_row

PREFIX, SECRET = b"account 7301-", b"552"
SPACE = 1000
OTHERS = [PREFIX + f"{number:03d}".encode() for number in range(SPACE) if number != int(SECRET)]


def model(context: int = 24) -> GPT:
    torch.manual_seed(5)
    return GPT(blocks=1, width=32, context=context, vocabulary=257)


@pytest.fixture(scope="module")
def memorizer() -> GPT:
    """A model that has read one string over and over."""
    trained = model()
    tokens = torch.tensor([list(PREFIX + SECRET)])
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        logits = trained(tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:]).backward()
        optimizer.step()
    return trained


# Arithmetic ------------------------------------------------------------------------------


@given(st.integers(1, 10**12))
def test_the_first_of_all_has_all_bits_and_the_last_none(candidates):
    assert bits(1, candidates) == math.log2(candidates)
    assert bits(candidates, candidates) == 0


# The distribution ------------------------------------------------------------------------


@each_row("shape", [-4.0, 0.0, 0.5, 4.0])
def test_the_mass_below_is_that_of_samples_and_reaches_one(shape):
    generator = torch.Generator().manual_seed(1)
    first, second = torch.randn(2, 20_000, generator=generator, dtype=torch.float64)
    delta = shape / math.sqrt(1 + shape**2)
    samples = 7 + 2 * (delta * first.abs() + math.sqrt(1 - delta**2) * second)
    known = SkewNormal(7.0, 2.0, shape)
    places = torch.tensor([3.0, 6.0, 7.0, 8.5, 11.0, 60.0], dtype=torch.float64)
    found = known.log_cdf(places).exp()
    counted = torch.stack([(samples <= each).double().mean() for each in places])
    assert torch.allclose(found, counted, atol=0.012)
    assert float(found[-1]) == pytest.approx(1, abs=1e-6)
    fitted = exposure.fit(samples)
    assert torch.allclose(fitted.log_cdf(places).exp(), found, atol=0.005)
    # Each sample costs an integral. All 20,000 would see a distance of 0.01, which is above 0.005.
    assert exposure.goodness(fitted, samples[:5000]).p_value > 0.05


@each_row("secret", [14.0, 17.0, 20.0, 23.0])
def test_extrapolation_agrees_with_the_exact_value_where_both_can_be_had(secret):
    generator = torch.Generator().manual_seed(3)
    first, second = torch.randn(2, 200_000, generator=generator, dtype=torch.float64)
    losses = 20 + 2 * (0.6 * first.abs() + 0.8 * second)
    all_of_them = exact(losses, secret)
    few = extrapolated(losses[:2000], secret, losses.numel() + 1)
    assert few.bits == pytest.approx(all_of_them.bits, abs=0.6)
    assert few.rank is None
    assert few.fit.p_value > 0.05
    assert few.sampled_bits <= math.log2(2001)


# Models ----------------------------------------------------------------------------------


def test_an_overfitted_string_is_fully_exposed_and_a_fresh_model_exposes_little(memorizer):
    assert measure(memorizer, PREFIX + SECRET, OTHERS, SPACE).rank == 1
    fresh = measure(model(), PREFIX + SECRET, OTHERS, SPACE)
    assert fresh.bits < 6
    assert (fresh.scored, fresh.candidates) == (SPACE, SPACE)


def decode(trained: GPT, prefix: list[int], count: int) -> list[int]:
    """Greedy decoding, token by token."""
    tokens = list(prefix)
    trained.eval()
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(trained(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prefix) :]


def greedy(trained: GPT, sequences: list[list[int]], starts: list[int]) -> list[bool]:
    found = continuations(trained, sequences, starts, temperature=1, top_k=0)
    return [each.greedy for each in found]


def test_extractable_is_what_greedy_decoding_gives(memorizer):
    whole = list(PREFIX + SECRET)
    changed = [*whole[:-1], whole[-1] + 1]
    for start in (4, 8, 13):
        asked = [whole, changed]
        told = greedy(memorizer, asked, [start, start])
        assert told == [decode(memorizer, s[:start], len(s) - start) == s[start:] for s in asked]
        assert told == [True, False]
    assert greedy(model(), [whole], [13]) == [False]


def test_losses_that_are_no_numbers_expose_nothing(memorizer):
    broken = model()
    with torch.no_grad():
        broken.head.weight.fill_(math.nan)
    with pytest.raises(UsageError, match="not finite"):
        measure(broken, PREFIX + SECRET, OTHERS, SPACE)
    with pytest.raises(ValueError, match="in common"):
        measure(memorizer, b"abc", [b"bbc"], 2)


# The counterfactual gap ------------------------------------------------------------------
