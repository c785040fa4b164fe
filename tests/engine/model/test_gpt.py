"""The built-in model: causal, deterministic, and grouped as the policy names layers."""

import pytest
import torch
from torch.nn import functional as F

from govray.engine.batch import IGNORED
from govray.engine.model.gpt import GPT, loss
from govray.errors import UsageError
from tests.support.table import each_row

SIZES = {"blocks": 2, "width": 32, "context": 12, "vocabulary": 11}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(7)


def rows(count, tokens, vocabulary=11):
    return torch.randint(0, vocabulary, (count, tokens))


def test_logits_have_one_row_per_token():
    assert GPT(**SIZES)(rows(3, 12)).shape == (3, 12, 11)


def test_every_parameter_lies_in_a_layer_group_and_none_is_a_bias():
    names = [name for name, _ in GPT(**SIZES).named_parameters()]
    assert {name.split(".")[0] for name in names} == {"embedding", "blocks", "final_norm", "head"}
    assert not [name for name in names if name.endswith("bias")]


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


def test_the_global_generator_fixes_the_weights():
    def weights(seed):
        torch.manual_seed(seed)
        return GPT(**SIZES).state_dict()

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_residual_projections_start_smaller():
    block = GPT(blocks=8, width=128, context=4, vocabulary=4).blocks[0]
    assert block.attention.out.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert block.attention.query_key_value.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_tied_head_is_one_tensor():
    model = GPT(**SIZES, tied=True)
    assert model.head.weight is model.embedding.tokens.weight
    assert "head.weight" not in dict(model.named_parameters())
    assert "head.weight" in dict(GPT(**SIZES).named_parameters())


def test_the_meta_device_draws_and_allocates_nothing():
    state = torch.get_rng_state()
    with torch.device("meta"):
        model = GPT(blocks=64, width=8192, context=8192, vocabulary=100_000)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert torch.equal(state, torch.get_rng_state())


def test_loss_is_unreduced_and_zero_without_a_target():
    model = GPT(**SIZES).double()
    tokens, targets = rows(3, 12), rows(3, 12)
    targets[1, 4:] = IGNORED
    losses = loss(model, {"tokens": tokens, "targets": targets})
    log_probabilities = F.log_softmax(model(tokens), dim=-1)
    expected = -log_probabilities.gather(2, targets.clamp_min(0)[..., None])[..., 0]
    expected[1, 4:] = 0
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)


def test_gradients_reach_every_parameter():
    model = GPT(**SIZES)
    loss(model, {"tokens": rows(2, 12), "targets": rows(2, 12)}).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


@each_row(
    ("change", "message"),
    [
        ({"blocks": 0}, "blocks is 0"),
        ({"width": 0}, "width is 0"),
        ({"context": -1}, "context is -1"),
        ({"vocabulary": 0}, "vocabulary is 0"),
        ({"heads": 3}, "3 heads do not divide a width of 32"),
        ({"heads": 0}, "heads is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"dropout": -0.1}, "dropout is -0.1"),
    ],
)
def test_bad_sizes_are_named(change, message):
    with pytest.raises(UsageError, match=message):
        GPT(**SIZES | change)


@each_row(("width", "heads"), [(16, 1), (128, 2), (192, 3), (200, 2), (256, 4)])
def test_heads_divide_the_width_by_default(width, heads):
    with torch.device("meta"):
        assert GPT(1, width, 4, 5).blocks[0].attention.heads == heads


def test_rows_beyond_the_context_are_refused():
    with pytest.raises(UsageError, match="13 tokens exceed the context of 12"):
        GPT(**SIZES)(rows(1, 13))
