"""(n, p)-discoverable extraction: its arithmetic, and one forward against real sampling."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from govray.engine.memorization.sequence_loss import (
    chance,
    continuations,
    least_samples,
    target_losses,
)
from govray.engine.model.gpt import GPT

TEXT = list(b"to be")
START, SAMPLES = 2, 8_000


@given(st.floats(-30, -1e-9), st.floats(0.01, 0.99))
def test_the_least_number_is_the_least(log_probability, p):
    found = least_samples(log_probability, p)
    assert found is not None
    # Above 10^9 a step of one is below the rounding of the logarithms.
    slack = max(1, found // 10**9)
    assert chance(log_probability, found + slack) >= p
    if found > slack:
        assert chance(log_probability, found - slack) < p


@pytest.fixture(scope="module")
def model() -> GPT:
    """One that has half learnt a text."""
    torch.manual_seed(7)
    trained = GPT(blocks=1, width=32, context=8, vocabulary=257).eval()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=3e-3)
    tokens = torch.tensor([TEXT])
    for _ in range(200):
        logits = trained(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:])
        if loss.item() < 0.9:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return trained


def sampled(model: GPT, temperature: float, top_k: int) -> float:
    """How often sampling, token by token, gives the text."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.tensor([TEXT[:START]]).repeat(SAMPLES, 1)
    with torch.no_grad():
        while rows.shape[1] < len(TEXT):
            likely, ids = (model(rows)[:, -1] / temperature).topk(top_k or 257)
            drawn = torch.multinomial(likely.softmax(1), 1, generator=generator)
            rows = torch.cat([rows, ids.gather(1, drawn)], dim=1)
    return (rows == torch.tensor(TEXT)).all(1).double().mean().item()


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (1.0, 40), (0.7, 3), (1.5, 40)])
def test_one_forward_gives_what_sampling_gives(model, temperature, top_k):
    [found] = continuations(model, [TEXT], [START], temperature=temperature, top_k=top_k)
    q = math.exp(found.log_probability)
    assert 0.001 < q < 0.999
    assert sampled(model, temperature, top_k) == pytest.approx(
        q, abs=5 * math.sqrt(q * (1 - q) / SAMPLES)
    )


def test_the_scheme_counts(model):
    def at(temperature, top_k):
        [found] = continuations(model, [TEXT], [START], temperature=temperature, top_k=top_k)
        return found.log_probability

    [losses] = target_losses(model, [TEXT], [START])
    assert at(1.0, 0) == pytest.approx(-float(losses.sum()))
    assert at(1.0, 0) == at(1.0, 257) < at(1.0, 40) < at(0.5, 40)
    # Not the likeliest: with k = 1 it never comes, as greedy decoding does not give it.
    [other] = continuations(model, [list(b"to xx")], [START], temperature=1, top_k=1)
    assert (other.greedy, other.log_probability) == (False, -math.inf)
    for temperature, top_k in ((0.0, 0), (1.0, -1)):
        with pytest.raises(ValueError, match="no sampling scheme"):
            at(temperature, top_k)
