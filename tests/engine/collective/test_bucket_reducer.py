"""The overlapped reducer: the explicit reference's bits, sent earlier, and never left waiting."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from govray.engine.batch import StepBatch
from govray.engine.collective import bucket_reducer as reducer_module
from govray.engine.collective.agreement import Pending
from govray.engine.collective.allreduce import lay_out
from govray.engine.collective.bucket_reducer import Reducer
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.step import GovernedStep
from govray.errors import RankFailed
from govray.governance.policy.route import Route
from tests.support.cases import governed, micro_batch, step_batch, token_rows
from tests.support.explicit_sum import sum_over_ranks
from tests.support.ranks import RankPool

CONTEXT, VOCABULARY = 4, 11
PROMPT_S = 120.0

ALL = Route(dict.fromkeys(["embedding", "block.0", "block.1", "final_norm", "head"], 1.0))
UPPER = Route(dict.fromkeys(["block.1", "final_norm", "head"], 1.0))
MIDDLE = Route({"block.0": 0.5})
HEAD = Route({"head": 1.0})
LEFT = Route({}, "left", 2)
RIGHT = Route({}, "right", 2)
ROUTES = (ALL, UPPER, MIDDLE, HEAD, LEFT, RIGHT)


def of_size(size: int) -> Callable[[Mapping[str, nn.Parameter]], list[list[str]]]:
    """A bucket layout: so many parameters in each, last first."""

    def layout(parameters: Mapping[str, nn.Parameter]) -> list[list[str]]:
        names = list(reversed(list(parameters)))
        return [names[start : start + size] for start in range(0, len(names), size)]

    return layout


def fresh(
    routes: Sequence[Route] = ROUTES, **options: Any
) -> tuple[GPT, torch.optim.Optimizer, GovernedStep]:
    torch.manual_seed(1)
    model = GPT(2, 8, CONTEXT, VOCABULARY, heads=1)
    adapters = Adapters(model, {r.adapter: 2 for r in routes if r.adapter is not None}, seed=0)
    own = dict(adapters.named_parameters())
    with torch.no_grad():
        for parameter in (*model.parameters(), *own.values()):
            parameter.normal_(std=0.4)
    optimizer = torch.optim.AdamW([*model.parameters(), *own.values()], lr=1e-2)
    return model, optimizer, governed(model, optimizer, routes, adapters=adapters, **options)


def batch_of(step: int, counts: Mapping[Route, int]) -> StepBatch:
    """So many rows of each stream, other ones on every rank."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    return step_batch(
        step,
        [
            micro_batch(route, token_rows(count, CONTEXT, VOCABULARY, step, rank, index), rank * 8)
            for index, (route, count) in enumerate(counts.items())
            if count
        ],
    )


@contextmanager
def explicit() -> Iterator[None]:
    """The reference in the reducer's place: nothing is sent before the last backward."""

    def send_all(self: Reducer) -> None:
        domains = {id(domain): domain for domain, _ in self._buckets}
        self._total = sum_over_ranks(list(domains.values()), self._counts())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reducer, "_accumulated", lambda self, name: None)
        patch.setattr(Reducer, "send_rest", send_all)
        patch.setattr(Reducer, "sums", lambda self: self._total)
        yield


@contextmanager
def sends_counted() -> Iterator[list[int]]:
    """The size of every gradient all-reduce that this rank starts."""
    sizes: list[int] = []
    all_reduce = dist.all_reduce

    def counting(tensor: Tensor, *args: Any, **options: Any) -> Any:
        sizes.append(tensor.numel())
        return all_reduce(tensor, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", counting)
        yield sizes


@dataclass(frozen=True)
class Case:
    """Some steps to take."""

    routes: tuple[Route, ...]
    rows: tuple[tuple[tuple[int, ...], ...], ...]
    max_rows: int | None
    bucket: int
    tries_rows: bool = False


def gradients(case: Case) -> tuple[list[dict[str, Tensor]], list[list[int]]]:
    """Per step: the gradients that the optimizer sees, and the sizes that were sent."""
    seen: list[dict[str, Tensor]] = []
    sent: list[list[int]] = []
    _, optimizer, run = fresh(
        case.routes,
        max_rows=case.max_rows,
        layout=of_size(case.bucket),
        tries_rows=case.tries_rows,
    )
    names = run.routed.parameters

    def look(*_: object) -> None:
        seen.append({n: p.grad.clone() for n, p in names.items() if p.grad is not None})

    optimizer.register_step_pre_hook(look)
    for step, ranks in enumerate(case.rows):
        counts = dict(zip(case.routes, ranks[dist.get_rank()], strict=True))
        with sends_counted() as sizes:
            run(batch_of(step, counts), loss)
        sent.append(sizes)
    return seen, sent


def compare(case: Case) -> tuple[list[dict[str, Tensor]], list[list[int]]]:
    """Both reducers on one rank; what was sent, and the gradients, if they agree."""
    ours, sent = gradients(case)
    with explicit():
        theirs, reference = gradients(case)
    assert sent == reference  # the same buckets, in the same order
    for own, other in zip(ours, theirs, strict=True):
        assert own.keys() == other.keys()
        for name, gradient in other.items():
            assert torch.equal(own[name], gradient), name
    return ours, sent


def check(pool: RankPool, case: Case) -> None:
    (ours, sent), *others = pool.run(compare, case)
    for gradients_there, sent_there in others:
        assert sent_there == sent
        for own, other in zip(ours, gradients_there, strict=True):
            assert own.keys() == other.keys()
            assert all(torch.equal(own[name], other[name]) for name in own)


def cases(world: int) -> st.SearchStrategy[Case]:
    @st.composite
    def drawn(draw: st.DrawFn) -> Case:
        routes = tuple(draw(st.lists(st.sampled_from(ROUTES), min_size=1, unique=True)))
        # Ranks without a row of a stream, or of any, are likely.
        per_rank = st.tuples(*[st.sampled_from([0, 0, 1, 2, 3]) for _ in routes])
        per_step = st.tuples(*[per_rank for _ in range(world)])
        return Case(
            routes,
            draw(st.tuples(per_step, per_step)),
            draw(st.sampled_from([None, 1, 2])),
            draw(st.sampled_from([1, 2, 5, 100])),
        )

    return drawn()


drawn = settings(
    max_examples=4,
    deadline=None,
    # One pool serves all examples on purpose.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@drawn
@given(case=cases(2))
def test_two_ranks_get_the_bits_of_the_reference(two_ranks: RankPool, case: Case) -> None:
    check(two_ranks, case)


@settings(drawn, max_examples=3)
@given(case=cases(4))
def test_four_ranks_get_the_bits_of_the_reference(four_ranks: RankPool, case: Case) -> None:
    check(four_ranks, case)


UNEVEN = Case(
    (ALL, UPPER, MIDDLE, LEFT, RIGHT),
    (
        ((3, 2, 1, 2, 0), (0, 0, 0, 0, 0), (0, 0, 2, 0, 1), (1, 0, 0, 0, 0)),
        ((0, 0, 0, 0, 0), (0, 0, 0, 1, 0), (0, 0, 0, 0, 0), (0, 0, 1, 0, 0)),
    ),
    1,
    1,
    tries_rows=True,
)


def other_layout(case: Case) -> bool:
    """Whether buckets of one parameter and of all give the same bits."""
    small, _ = gradients(replace(case, bucket=1))
    large, _ = gradients(replace(case, bucket=100))
    return all(
        torch.equal(one[name], another[name])
        for one, another in zip(small, large, strict=True)
        for name in one
    )


def test_bits_depend_on_the_buckets_from_three_ranks_on(four_ranks: RankPool) -> None:
    """The control: what the comparisons above could miss, they see."""
    same_rows = replace(UNEVEN, rows=(((3, 0, 0, 0, 0),) * 4,))
    assert not all(four_ranks.run(other_layout, same_rows))


def sizes_sent(case: Case) -> list[list[int]]:
    return gradients(case)[1]


def test_only_buckets_with_targets_on_some_rank_are_sent(two_ranks: RankPool) -> None:
    head, block = VOCABULARY * 8, [8 * 32, 32 * 8, 8, 8 * 8, 8 * 24, 8]
    rows = (
        ((0, 1, 0), (0, 0, 0)),  # HEAD, on one rank only
        ((0, 0, 0), (0, 0, 2)),  # MIDDLE, on the other
        ((0, 0, 0), (0, 0, 0)),  # nobody has anything
    )
    for sent in two_ranks.run(sizes_sent, Case((ALL, HEAD, MIDDLE), rows, None, 1)):
        assert sent == [[head], block, []]
    # However few buckets are asked for, none joins what different streams update.
    for sent in two_ranks.run(sizes_sent, Case((ALL, HEAD, MIDDLE), rows, None, 100)):
        assert sent == [[head], [sum(block)], []]


def events(rows: Mapping[Route, int], max_rows: int | None, deaf: bool) -> list[str]:
    """What happens in one step on this rank, in order."""
    log: list[str] = []
    backward, all_reduce, settle = Tensor.backward, dist.all_reduce, Pending.wait

    def logged_backward(*args: Any, **options: Any) -> None:
        log.append("backward begins")
        backward(*args, **options)
        log.append("backward ends")

    def logged_all_reduce(*args: Any, **options: Any) -> Any:
        log.append("send")
        return all_reduce(*args, **options)

    def logged_wait(self: Pending) -> Any:
        agreed = settle(self)
        log.append("agreed")
        return agreed

    _, _, run = fresh(max_rows=max_rows, layout=of_size(2))
    with pytest.MonkeyPatch.context() as patch:
        if deaf:
            patch.setattr(Reducer, "_accumulated", lambda self, name: None)
        patch.setattr(Tensor, "backward", logged_backward)
        patch.setattr(dist, "all_reduce", logged_all_reduce)
        patch.setattr(Pending, "wait", logged_wait)
        run(batch_of(0, rows), loss)
    return log


@pytest.mark.parametrize(("max_rows", "passes"), [(None, 1), (1, 3)])
def test_sending_starts_before_the_last_backward_ends(
    two_ranks: RankPool, max_rows: int | None, passes: int
) -> None:
    for log in two_ranks.run(events, {ALL: 3}, max_rows, False):
        assert log.count("backward begins") == passes
        last_begin = len(log) - 1 - log[::-1].index("backward begins")
        last_end = len(log) - 1 - log[::-1].index("backward ends")
        assert last_begin < log.index("send") < last_end
        # Not only the last bucket: most of them are on their way by then.
        assert log[:last_end].count("send") > log.count("send") / 2
        assert log.index("agreed") < log.index("send")


def test_without_its_hooks_everything_is_sent_afterwards(two_ranks: RankPool) -> None:
    for log in two_ranks.run(events, {ALL: 3}, 1, True):
        assert "send" not in log[: len(log) - log[::-1].index("backward ends")]
        assert "send" in log


def dying(rank: int, store: str, at: int, report: Any) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=3, timeout=timedelta(seconds=5 * PROMPT_S)
    )
    model, _, run = fresh((ALL, LEFT), max_rows=1, layout=of_size(2))
    before = [p.detach().clone() for p in model.parameters()]
    calls = -1

    def loss_fn(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        if rank == 1 and calls == at:
            os._exit(9)
        return loss(model, rows)

    said = "went on"
    try:
        run(batch_of(0, {ALL: 2, LEFT: 1}), loss_fn)
    except RankFailed as error:
        said = str(error)
    report.send((said, all(map(torch.equal, model.parameters(), before))))


def test_a_rank_that_dies_is_reported_not_waited_for(tmp_path: Path) -> None:
    at = 2  # with gradients under way
    context = multiprocessing.get_context("forkserver")
    ours, processes = [], []
    for rank in range(3):
        here, there = context.Pipe(duplex=False)
        process = context.Process(
            target=dying, args=(rank, (tmp_path / "store").as_uri(), at, there), daemon=True
        )
        process.start()
        there.close()
        ours.append(here)
        processes.append(process)
    try:
        for rank in (0, 2):
            assert ours[rank].poll(PROMPT_S)  # far below the group's timeout
            said, unmoved = ours[rank].recv()
            assert "another rank is gone" in said
            assert unmoved
        processes[1].join(PROMPT_S)
        assert processes[1].exitcode == 9
    finally:
        for process in processes:
            process.kill()
            process.join()


class AsReady(Reducer):
    """Sends whatever is complete, in the order in which it becomes so here."""

    def _send_ready(self) -> None:
        assert self._counts is not None
        counts = self._counts()
        for place, (domain, bucket) in enumerate(self._buckets):
            if place in self._sent or self._missing[place]:
                continue
            if any(counts[name] for name in bucket):
                flat = reducer_module.flat_gradient(domain, bucket)
                self._sent[place] = flat, dist.all_reduce(flat, async_op=True)


def sum_of_two(kind: type[Reducer]) -> dict[str, list[float]]:
    """Two equal parameters; rank 0 has two passes for the first, rank 1 for the second."""
    parameters = {name: nn.Parameter(torch.zeros(3)) for name in ("a", "b")}
    domain = lay_out("d", frozenset({"g"}), parameters, of_size(1))
    reducer = kind([domain])
    mine, other = ("a", "b") if dist.get_rank() == 0 else ("b", "a")
    reducer.begin(lambda: {"a": 1, "b": 1})
    reducer.expect({mine: 2, other: 1})
    worth = {"a": 1.0, "b": 10.0}
    for name in (mine, other, mine):
        (parameters[name].sum() * worth[name]).backward()
    reducer.send_rest()
    total = {name: tensor.tolist() for name, tensor in reducer.sums().items()}
    reducer.end()
    return total


def test_buckets_sent_as_they_become_ready_are_mixed_up(two_ranks: RankPool) -> None:
    for total in two_ranks.run(sum_of_two, Reducer):
        assert total == {"a": [3.0] * 3, "b": [30.0] * 3}
    for total in two_ranks.run(sum_of_two, AsReady):
        assert total != {"a": [3.0] * 3, "b": [30.0] * 3}
