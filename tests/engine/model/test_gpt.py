"""The built-in model: causal, deterministic, and grouped as the policy names layers."""

import pytest
import torch
from torch.nn import functional as F

from govray.engine.batch import IGNORED
from govray.engine.model.gpt import GPT, loss
from tests.support.table import each_row

SIZES = {"blocks": 2, "width": 32, "context": 12, "vocabulary": 11}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(7)


def rows(count, tokens, vocabulary=11):
    return torch.randint(0, vocabulary, (count, tokens))


@each_row("place", [0, 5, 11])
def test_a_token_changes_no_logit_before_it(place):
    model = GPT(**SIZES, heads=2).double()
    tokens = rows(2, 12)
    changed = tokens.clone()
    changed[:, place] = (changed[:, place] + 1) % 11
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :place], after[:, :place])
    # The control: it does change its own logits and some after it.
    assert not torch.equal(before[:, place], after[:, place])


def test_loss_is_unreduced_and_zero_without_a_target():
    model = GPT(**SIZES).double()
    tokens, targets = rows(3, 12), rows(3, 12)
    targets[1, 4:] = IGNORED
    losses = loss(model, {"tokens": tokens, "targets": targets})
    log_probabilities = F.log_softmax(model(tokens), dim=-1)
    expected = -log_probabilities.gather(2, targets.clamp_min(0)[..., None])[..., 0]
    expected[1, 4:] = 0
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
