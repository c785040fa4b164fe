"""Scores against hand calculation; scoring leaves no trace; each corpus through its own adapter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from govray.engine.batch import IGNORED
from govray.engine.memorization import scores
from govray.engine.memorization.logit_lens import Lens, find_lens
from govray.engine.memorization.monitor import logits_in
from govray.engine.memorization.scores import RowScores, score_rows, token_scores, untouched
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from tests.support.cases import allow_all, governed, micro_batch, step_batch, token_rows

CONTEXT, VOCABULARY = 8, 17


def gpt(dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    return GPT(3, 16, CONTEXT, VOCABULARY, heads=2, dropout=dropout)


def plain(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
    return model(tensors["tokens"])


def scored(model: nn.Module, rows: Mapping[str, Tensor], **settings_: object) -> RowScores:
    given_: dict[str, object] = {"logits": plain, "adapters": Adapters(model, {}, seed=0)}
    if "lens" not in settings_:
        with untouched(model):
            given_["lens"] = find_lens(model, lambda: plain(model, rows))
    return score_rows(model, rows, **(given_ | settings_))  # type: ignore[arg-type]


@given(
    st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=9),
    st.data(),
)
@settings(max_examples=60)
def test_entropy_and_surprise_are_their_definitions(
    logits: list[float], data: st.DataObject
) -> None:
    target = data.draw(st.integers(0, len(logits) - 1))
    top = max(logits)
    total = math.fsum(math.exp(each - top) for each in logits)
    log_p = [each - top - math.log(total) for each in logits]
    mean = math.fsum(math.exp(each) * each for each in log_p)
    sigma = math.sqrt(math.fsum(math.exp(each) * (each - mean) ** 2 for each in log_p))
    found = token_scores(torch.tensor([[logits]]), torch.tensor([[target]]))
    assert float(found.entropy) == pytest.approx(-mean, abs=2e-5)
    if sigma > 0.01:
        surprise = (mean - log_p[target]) / sigma
        assert float(found.surprise) == pytest.approx(surprise, rel=1e-2, abs=1e-2)


def test_rows_are_scored_alike_alone_in_company_and_padded() -> None:
    model, rows = gpt(), token_rows(5, CONTEXT, VOCABULARY, 1)
    rows["targets"][1, 3:] = IGNORED
    whole = scored(model, rows)
    for size in (1, 2, 16):
        again = scored(model, rows, rows_per_pass=size)
        torch.testing.assert_close(again.table(), whole.table(), rtol=1e-4, atol=1e-5)
    assert torch.equal(scored(model, rows, passes=4).table(), whole.table())
    back = RowScores.of_table(whole.layers, whole.table())
    assert torch.equal(back[1:3].min_k, whole.min_k[:, 1:3])
    none = {name: each[:0] for name, each in rows.items()}
    assert len(scored(model, none, lens=Lens(), passes=2)) == 0


def test_a_corpus_is_read_through_its_own_adapter_and_others_through_none() -> None:
    model, rows = gpt(), token_rows(2, CONTEXT, VOCABULARY, 1)
    adapters = Adapters(model, {"notes": 2, "other": 2}, seed=0)
    bare = scored(model, rows, adapters=adapters).table()
    with torch.no_grad():
        for name, parameter in adapters.named_parameters():
            if name.startswith("adapter:notes/"):
                parameter.add_(0.5)
    assert torch.equal(scored(model, rows, adapters=adapters).table(), bare)
    assert torch.equal(scored(model, rows, adapters=adapters, adapter="other").table(), bare)
    through = scored(model, rows, adapters=adapters, adapter="notes").table()
    assert (through - bare).abs().max() > 1e-3


class Noisy(GPT):
    """Draws from the global generator in every forward."""

    def forward(self, tokens: Tensor) -> Tensor:
        logits = super().forward(tokens)
        return logits + 0.1 * torch.randn_like(logits)


def trained(kind: type[GPT], monitored: bool) -> dict[str, Tensor]:
    """Weights after four governed steps with dropout, scored between them or not."""
    torch.manual_seed(0)
    model = kind(2, 16, CONTEXT, VOCABULARY, heads=2, dropout=0.2)
    model.blocks[0].eval()  # a mode of its own, which must be put back
    adapters = Adapters(model, {"notes": 2}, seed=0)
    optimizer = torch.optim.AdamW(
        [*model.parameters(), *(each for _, each in adapters.named_parameters())], lr=1e-2
    )
    route = allow_all(model)
    step = governed(model, optimizer, [route], adapters=adapters)
    for place in range(4):
        if monitored:
            rows = token_rows(3, CONTEXT, VOCABULARY, 9)
            for adapter in (None, "notes"):
                score_rows(
                    model,
                    rows,
                    logits=logits_in(loss),
                    lens=Lens(),
                    adapters=adapters,
                    adapter=adapter,
                )
        # From the generator that the user's own code shares with the model.
        drawn = torch.randint(VOCABULARY, (4, CONTEXT + 1))
        rows = {"tokens": drawn[:, :-1], "targets": drawn[:, 1:]}
        step(step_batch(place, [micro_batch(route, rows)]), loss)
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", [GPT, Noisy])
def test_scoring_changes_no_bit_of_the_weights(kind: type[GPT]) -> None:
    assert equal(trained(kind, monitored=True), trained(kind, monitored=False))


@contextmanager
def evaluation_stays(model: nn.Module) -> Iterator[None]:
    model.eval()
    yield


@contextmanager
def modes_are_evened(model: nn.Module) -> Iterator[None]:
    model.eval()
    yield
    model.train()


@contextmanager
def generators_run_on(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    yield
    for module, mode in modes.items():
        module.training = mode


def test_a_scorer_that_leaves_a_trace_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controls of the test above: one for each thing that is put back."""
    without = {kind: trained(kind, monitored=False) for kind in (GPT, Noisy)}

    def differs(kind: type[GPT], replacement: Callable[[nn.Module], object]) -> bool:
        with monkeypatch.context() as patched:
            patched.setattr(scores, "untouched", replacement)
            return not equal(trained(kind, monitored=True), without[kind])

    assert differs(GPT, evaluation_stays)
    assert differs(GPT, modes_are_evened)
    assert differs(Noisy, generators_run_on)
    assert not differs(GPT, generators_run_on)  # which draws nothing in evaluation
