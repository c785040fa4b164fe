"""A worker's model, batches and commits on a GPU, where there is one. No Ray, and one rank."""

from __future__ import annotations

import pytest
import torch

from govray.engine.model.gpt import GPT, loss
from govray.engine.model.keyed_dropout import outputs
from govray.train.checkpoint.tensor_shards import held_here
from govray.train.worker.placement import place_on
from tests.support.cases import allow_all, batch_on, governed, micro_batch, step_batch, token_rows

pytestmark = pytest.mark.gpu


def test_a_step_leaves_nothing_on_the_cpu() -> None:
    device = torch.device("cuda", 0)
    torch.manual_seed(7)
    model = GPT(2, 32, 16, 61, dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters())
    place_on(device, model, optimizer)
    route = allow_all(model)
    run = governed(model, optimizer, [route], clip_norm=0.5)
    for step in range(3):
        rows = micro_batch(route, token_rows(4, 16, 61, 1, step))
        assert run(batch_on(step_batch(step, [rows]), device), loss).loss > 0
    assert {p.device for p in model.parameters()} == {device}
    kept = outputs(torch.arange(8, device=device), 0, 64).cpu()
    assert torch.equal(kept, outputs(torch.arange(8), 0, 64))  # the masks' words, on both


def test_copies_for_a_commit_are_pinned_and_whole() -> None:
    live = {"a": torch.arange(1 << 20, device="cuda"), "b": torch.ones(3), "c": torch.tensor(2.0)}
    copies, _ = held_here(live)
    live["a"].zero_()
    assert copies["a"].is_pinned()
    assert torch.equal(copies["a"], torch.arange(1 << 20))
    assert copies["b"].tolist() == [1, 1, 1]
