"""What each corpus contributed, over ranks and passes, equals an oracle; and no number moves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from govray.engine.batch import StepBatch
from govray.engine.gradients.norm_accounting import Accounting
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.model.layer_groups import layer_groups
from govray.engine.steps.step_result import NormSample
from govray.governance.policy.route import Route
from tests.support.cases import allow_all, governed, micro_batch, token_rows
from tests.support.ranks import RankPool

CONTEXT, VOCABULARY, BLOCKS = 5, 11, 3
CORPORA = ("a", "b", "c", "n")

Square = dict[tuple[str, str], float]


def fresh() -> tuple[GPT, Adapters]:
    torch.manual_seed(1)
    model = GPT(BLOCKS, 8, CONTEXT, VOCABULARY, heads=2).double()
    adapters = Adapters(model, {"notes": 2}, seed=0)
    with torch.no_grad():
        for parameter in (*model.parameters(), *dict(adapters.named_parameters()).values()):
            parameter.normal_(std=0.4)
    return model, adapters


def routes(model: GPT) -> dict[str, Route]:
    return {
        "all": allow_all(model),
        "upper": Route({"block.2": 0.5, "final_norm": 0.5, "head": 0.5}),
        "middle": Route({"block.1": 0.3, "block.2": 1.0}),
        "notes": Route({}, "notes", 2),
    }


def rows_of(rank: int) -> dict[str, list[tuple[str, int]]]:
    """Stream → (corpus, rows) on a rank; rank 1 has no row of ``upper``."""
    shared = {"all": [("a", 2), ("b", 1)], "middle": [("a", 1)], "notes": [("n", 2)]}
    return shared | ({"upper": [("c", 2)]} if rank == 0 else {})


def tensors(rank: int, stream: str) -> dict[str, Tensor]:
    count = sum(rows for _, rows in rows_of(rank)[stream])
    return token_rows(count, CONTEXT, VOCABULARY, rank, len(stream))


def batch(step: int, model: GPT, rank: int) -> StepBatch:
    micro_batches = []
    corpora: dict[str, tuple[int, int]] = {}
    for stream, runs in rows_of(rank).items():
        names = tuple(corpus for corpus, rows in runs for _ in range(rows))
        whole = micro_batch(routes(model)[stream], tensors(rank, stream))
        micro_batches.append(replace(whole, corpora=names))
        for corpus, rows in runs:
            held = corpora.get(corpus, (0, 0))
            corpora[corpus] = held[0] + rows, held[1] + rows * CONTEXT
    return StepBatch(step, tuple(micro_batches), corpora)


def sampled(max_rows: int | None, every: int) -> list[tuple[NormSample | None, dict[str, Tensor]]]:
    """Two steps on a rank: the sample, and the weights after it."""
    model, adapters = fresh()
    parameters = [*model.parameters(), *dict(adapters.named_parameters()).values()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    run = governed(
        model,
        optimizer,
        list(routes(model).values()),
        adapters=adapters,
        corpora=CORPORA,
        norms_every=every,
        max_rows=max_rows,
        tries_rows=every == 1,
    )
    results = []
    for step in (0, 1):
        result = run(batch(step, model, dist.get_rank()), loss)
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        results.append((result.norms, weights))
    return results


def oracle() -> Square:
    """Whole passes: each corpus of each stream on each rank is one piece."""
    model, adapters = fresh()
    groups = layer_groups(model) | adapters.groups
    parameters = {**dict(model.named_parameters()), **dict(adapters.named_parameters())}
    squares: Square = {}
    targets = dict.fromkeys(groups, 0)
    for rank in (0, 1):
        for stream, runs in rows_of(rank).items():
            route = routes(model)[stream]
            weights = dict(route.weights) | ({"adapter:notes": 1.0} if route.adapter else {})
            start = 0
            for corpus, rows in runs:
                part = {n: t[start : start + rows] for n, t in tensors(rank, stream).items()}
                start += rows
                with adapters.active(route.adapter):
                    total = loss(model, part).sum()
                for group, weight in weights.items():
                    own = [parameters[name] for name in groups[group]]
                    found = torch.autograd.grad(total, own, retain_graph=True)
                    square = sum(float((weight * g).square().sum()) for g in found)
                    squares[corpus, group] = squares.get((corpus, group), 0.0) + square
                    targets[group] += rows * CONTEXT
    return {(corpus, group): s / targets[group] ** 2 for (corpus, group), s in squares.items()}


def test_a_sample_equals_the_oracle_and_says_which_pieces_it_saw(two_ranks: RankPool) -> None:
    first, second = two_ranks.run(sampled, None, 2)
    (sample, _), (none, _) = first
    assert none is None
    assert sample == second[0][0]
    assert sample is not None
    expected = oracle()
    assert sample.squares.keys() == expected.keys()
    for key, square in expected.items():
        assert sample.squares[key] == pytest.approx(square, rel=1e-9), key
    model, _ = fresh()
    names = {route.digest: name for name, route in routes(model).items()}
    for rank in (0, 1):
        pieces = {names[stream]: rows for r, stream, rows in sample.pieces if r == rank}
        assert pieces == {stream: dict(runs) for stream, runs in rows_of(rank).items()}


@pytest.mark.parametrize("max_rows", [None, 2])
def test_measuring_moves_no_number(two_ranks: RankPool, max_rows: int | None) -> None:
    always = two_ranks.run(sampled, max_rows, 1)[0]
    rarely = two_ranks.run(sampled, max_rows, 50)[0]
    assert always[1][0] is not None
    assert rarely[1][0] is None
    for (_, ours), (_, theirs) in zip(always, rarely, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def unmeasurable_on_rank_1() -> NormSample | None:
    squares = Accounting.squares

    def partial(self: Accounting) -> dict[tuple[str, str], Tensor]:
        return {
            key: square
            for key, square in squares(self).items()
            if dist.get_rank() == 0 or key[1] != "block.1"
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Accounting, "squares", partial)
        return sampled(None, 50)[0][0]


def test_a_group_that_one_rank_could_not_measure_is_absent_on_all(two_ranks: RankPool) -> None:
    for sample in two_ranks.run(unmeasurable_on_rank_1):
        assert sample is not None
        measured = {group for _, group in sample.squares}
        assert "block.1" not in measured
        assert "block.2" in measured
