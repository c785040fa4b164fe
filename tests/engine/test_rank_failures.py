"""Whatever goes wrong on one rank: batch, loss, backward, torch's hosts, optimizer. All ranks stop
with one error, and no weight moves before the optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from govray.engine.batch import StepBatch
from govray.engine.collective.agreement import Agreement, RankFailure
from govray.engine.collective.bucket_reducer import Reducer
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.step import GovernedStep
from govray.errors import GovrayError, InfrastructureFailed, RankFailed, Refused, UsageError
from govray.governance.policy.route import Route
from tests.support.cases import CORPUS, allow_all, governed, micro_batch, step_batch, token_rows
from tests.support.ranks import Hung, RankPool

CONTEXT, VOCABULARY = 5, 11
LEFT = Route({}, "left", 2)
OTHER = "sha256:" + "f" * 64

LossFn = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Ended:
    """How a step ended on one rank, and the one after it.

    Attributes:
        sent: Buckets on their way when the others' backward had ended; and all of the step.
    """

    error: BaseException | None
    cause: str
    after: GovrayError | None
    moved: bool
    left_gradients: bool
    sent: tuple[int, int]
    weights: tuple[float, ...]


class Run:
    """A model of two domains, its optimizer and its step function."""

    def __init__(self, aggregator: str = "governed", max_rows: int | None = None) -> None:
        torch.manual_seed(0)
        self.model = GPT(2, 8, CONTEXT, VOCABULARY, heads=2)
        self.everything = allow_all(self.model)
        adapters = Adapters(self.model, {"left": 2}, seed=0)
        own = [parameter for _, parameter in adapters.named_parameters()]
        with torch.no_grad():
            for parameter in (*self.model.parameters(), *own):
                parameter.normal_(std=0.4)
        for each in (*self.model.blocks, self.model) if aggregator == "fsdp2" else ():
            fully_shard(each)
        self.optimizer: Any = torch.optim.AdamW([*self.model.parameters(), *own], lr=1e-2)
        self.step = governed(
            self.model,
            self.optimizer,
            [self.everything, LEFT],
            adapters=adapters,
            aggregator=aggregator,
            max_rows=max_rows,
            layout=in_twos,
            # The start-up trial would see a fault of the first step before the pass that is meant.
            tries_rows=False,
        )

    def batch(self, step: int, counts: Sequence[int] = (2, 1)) -> StepBatch:
        """So many rows for all layers, and so many for the adapter; other ones on every rank."""
        rank = dist.get_rank()
        parts = [
            micro_batch(route, token_rows(count, CONTEXT, VOCABULARY, step, place, rank), 10 * rank)
            for place, (route, count) in enumerate(
                zip((self.everything, LEFT), counts, strict=True)
            )
            if count
        ]
        return step_batch(step, parts)

    def weights(self) -> tuple[float, ...]:
        """What this rank holds, in a number for each parameter.

        Not the model's: FSDP2 puts whole tensors there, and a failure may leave them.
        """
        held = (p.detach() for p in self.optimizer.param_groups[0]["params"])
        return tuple(
            float((each.to_local() if isinstance(each, DTensor) else each).double().square().sum())
            for each in held
        )


def in_twos(parameters: Mapping[str, nn.Parameter]) -> list[list[str]]:
    names = list(reversed(list(parameters)))
    return [names[start : start + 2] for start in range(0, len(names), 2)]


def attempt(
    aggregator: str, name: str, at: int = 1, max_rows: int | None = 1, faulty: int = 1
) -> Ended:
    """Good steps, one in which the faulty rank fails, and one more."""
    fault, here = FAULTS[name], Run(aggregator, max_rows)
    for step in range(at):
        here.step(here.batch(step), loss)
    before = here.weights()
    batch, loss_fn = here.batch(at, fault.counts), loss
    if dist.get_rank() == faulty:
        batch, loss_fn = fault.batch(batch), fault.loss_fn(here)
    send_rest, sums, error = Reducer.send_rest, Reducer.sums, None
    sent = [0, 0]

    def counting(self: Reducer) -> None:
        sent[0] = len(self._sent)
        send_rest(self)

    def counting_all(self: Reducer) -> Any:
        sent[1] = max(sent[1], len(self._sent))
        return sums(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reducer, "send_rest", counting)
        patch.setattr(Reducer, "sums", counting_all)
        try:
            here.step(batch, loss_fn)
        except BaseException as caught:
            error = caught
    moved = here.weights() != before
    left = any(p.grad is not None for p in here.model.parameters())
    here.optimizer.__dict__.pop("step", None)
    after = None
    try:
        here.step(here.batch(at + 1), loss)
    except GovrayError as caught:
        after = caught
    cause = repr(error.__cause__) if error else ""
    return Ended(error, cause, after, moved, left, (sent[0], sent[1]), here.weights())


def undisturbed(aggregator: str, at: int, max_rows: int | None) -> tuple[float, ...]:
    """The weights of a run that did the good steps of an attempt only."""
    here = Run(aggregator, max_rows)
    for step in (*range(at), at + 1):
        here.step(here.batch(step), loss)
    return here.weights()


# Faults of the faulty rank, in one step.


@dataclass(frozen=True)
class Fault:
    """What goes wrong on one rank, and what all ranks say.

    Args:
        loss_fn: Makes the loss of that step.
        counts: Rows of that step, on all ranks.
        under_way: Whether gradients are on their way by then.
    """

    loss_fn: Callable[[Run], LossFn] = lambda _: loss
    batch: Callable[[StepBatch], StepBatch] = lambda batch: batch
    error: type[GovrayError] = RankFailed
    message: str = "rank 1, step 1: ValueError: it broke"
    under_way: bool = False
    counts: tuple[int, int] = (2, 1)


def fail(*_: object) -> Any:
    raise ValueError("it broke: ünknown")


def changed(change: LossFn, at: int | None = None) -> Any:
    """A loss that is another one in one of its calls; by default in all of them."""

    def made(_: Run) -> LossFn:
        calls = iter(range(100))

        def loss_fn(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
            here = next(calls)
            return change(model, rows) if at in (None, here) else loss(model, rows)

        return loss_fn

    return made


def wrapped(model: Any) -> Any:
    return getattr(model, "module", model)


def with_hook(place: Callable[[Any], nn.Module], hook: Callable[..., Any]) -> Any:
    def loss_fn(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
        handle = place(wrapped(model)).register_forward_pre_hook(hook)
        try:
            return loss(model, rows)
        finally:
            handle.remove()

    return loss_fn


def after_the_forward(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
    loss(model, rows)
    return fail()


def as_backward_begins(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
    losses = loss(model, rows)
    losses.register_hook(fail)
    return losses


def as_backward_ends(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
    """No gradient is owed any more, and the others take their norms."""
    losses = loss(model, rows)
    end = torch.autograd.Variable._execution_engine.queue_callback
    losses.register_hook(lambda _: end(fail))
    return losses


late_in_backward = with_hook(
    lambda model: model.blocks[0], lambda _, args: args[0].register_hook(fail) and None
)
"""When the gradient has come down to the embedding: the head's has gone."""


class Poison(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient * math.inf


def poisons_one_gradient(model: Any, rows: Mapping[str, Tensor]) -> Tensor:
    """The loss is finite; one parameter's gradient is not."""
    losses = loss(model, rows)
    return losses + 0 * Poison.apply(model.final_norm.weight.sum().expand(losses.shape) + 1.0)


def calls_backward(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
    losses = loss(model, rows)
    losses.sum().backward(retain_graph=True)
    return losses


def checkpoints_a_block_twice(model: Any, rows: Mapping[str, Tensor]) -> Tensor:
    hidden = model.embedding(rows["tokens"])
    for _ in range(2):
        hidden = checkpoint(model.blocks[0], hidden, use_reentrant=True)
    logits = model.head(model.final_norm(model.blocks[1](hidden)))
    flat = F.cross_entropy(logits.flatten(0, 1), rows["targets"].flatten(), reduction="none")
    return flat.view(rows["targets"].shape)


def looks_up_sparsely(model: Any, rows: Mapping[str, Tensor]) -> Tensor:
    """As a function, so no module says so."""
    own = F.embedding(rows["tokens"], model.embedding.tokens.weight, sparse=True).sum(2)
    return own.square()


def cut_off(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
    raise InfrastructureFailed("storage is out of reach")


def without_rows(error: str, **more: bool) -> Any:
    return lambda batch: StepBatch(batch.step, (), {}, error=error, **more)


def of_one_part(change: Callable[[Any], dict[str, Any]], targets: int = 0) -> Any:
    """A batch of which the first micro-batch is another, and so many targets fewer are counted."""

    def made(batch: StepBatch) -> StepBatch:
        first, *others = batch.micro_batches
        rows, counted = batch.corpora[CORPUS]
        parts = (replace(first, **change(first)), *others)
        return replace(batch, micro_batches=parts, corpora={CORPUS: (rows, counted - targets)})

    return made


def optimizer_fails(here: Run) -> LossFn:
    here.optimizer.step = fail
    return loss


def optimizer_fails_half_way(here: Run) -> LossFn:
    optimizer, step = here.optimizer, here.optimizer.step

    def half(*_: object) -> None:
        groups = optimizer.param_groups
        optimizer.param_groups = [{**groups[0], "params": groups[0]["params"][:3]}]
        step()
        optimizer.param_groups = groups
        fail()

    optimizer.step = half
    return loss


def leave(error: BaseException) -> Callable[..., Any]:
    def raising(*_: object) -> Any:
        raise error

    return raising


def optimizer_leaves(here: Run) -> LossFn:
    here.optimizer.step = leave(SystemExit(3))
    return loss


NOT_FINITE = r"rank 1, step 1: the gradient of \S+ is not finite"
UNPLANNED = "rank 1, step 1: .*received a gradient that was not planned"
ONE = (1, 0)
# Passes with max_rows=1: two for all layers, then one of the adapter's domain.
IN_THE_PASS: dict[str, Fault] = {
    "before the forward": Fault(changed(fail)),
    "between blocks": Fault(changed(with_hook(lambda m: m.blocks[1].attention, fail))),
    "after the forward": Fault(changed(after_the_forward)),
    "as backward begins": Fault(changed(as_backward_begins)),
    "late in backward": Fault(changed(late_in_backward), under_way=True, counts=ONE),
    "as backward ends": Fault(changed(as_backward_ends), under_way=True, counts=ONE),
}
UNLOADED = "rank 1, step 1: could not load its batch: shard 3"
BEFORE_THE_PASS: dict[str, Fault] = {
    "cannot load": Fault(batch=without_rows("shard 3 is bad"), message=f"{UNLOADED} is bad"),
    "cannot reach": Fault(
        batch=without_rows("shard 3: gone", unreachable=True),
        error=InfrastructureFailed,
        message=f"{UNLOADED}: gone",
    ),
    "is refused its batch": Fault(
        batch=without_rows("shard 3 changed", refused=True),
        error=Refused,
        message=f"{UNLOADED} changed",
    ),
    "is elsewhere": Fault(
        batch=lambda batch: replace(batch, step=batch.step + 1),
        error=Refused,
        message="rank 1: step differs between ranks: 2 here, 1 on rank 0",
    ),
    "reads an unknown stream": Fault(
        batch=of_one_part(lambda _: {"stream": OTHER}),
        error=Refused,
        message=f"rank 1, step 1: .*{OTHER}, which no route",
    ),
    "reads an unknown corpus": Fault(
        batch=lambda batch: replace(batch, corpora={"contraband": batch.corpora[CORPUS]}),
        error=Refused,
        message="rank 1, step 1: .*contraband, which was not admitted",
    ),
    "counts a row too few": Fault(
        batch=lambda batch: replace(batch, corpora={CORPUS: (2, batch.corpora[CORPUS][1])}),
        error=Refused,
        message="rank 1, step 1: .*its corpora count 2 rows",
    ),
}
FAULTS: dict[str, Fault] = (
    BEFORE_THE_PASS
    | IN_THE_PASS
    | {
        "forward of the second pass": Fault(changed(fail, 1)),
        "forward of the next domain": Fault(changed(fail, 2), under_way=True),
        "backward of the next domain": Fault(changed(as_backward_begins, 2), under_way=True),
        "nan": Fault(
            changed(lambda *a: loss(*a) * math.nan, 0), message=NOT_FINITE, under_way=True
        ),
        "infinity in the last pass": Fault(
            changed(lambda *a: loss(*a) * math.inf, 2), message=NOT_FINITE, under_way=True
        ),
        "one infinite gradient": Fault(
            changed(poisons_one_gradient),
            message=NOT_FINITE.replace(r"\S+", r"final_norm\.weight"),
            under_way=True,
            counts=ONE,
        ),
        "backward by hand": Fault(
            changed(calls_backward),
            error=Refused,
            message=UNPLANNED,
            under_way=True,
            counts=ONE,
        ),
        "backward by hand in several passes": Fault(
            changed(calls_backward), error=Refused, message=UNPLANNED, under_way=True, counts=(2, 0)
        ),
        "a checkpointed block used twice": Fault(
            changed(checkpoints_a_block_twice),
            error=Refused,
            message=UNPLANNED + ".*use_reentrant=False",
            under_way=True,
            counts=ONE,
        ),
        "a sparse gradient": Fault(
            changed(looks_up_sparsely),
            error=Refused,
            message=r"rank 1, step 1: .*embedding\.tokens\.weight received a sparse gradient",
            counts=ONE,
        ),
        "is cut off": Fault(
            changed(cut_off),
            error=InfrastructureFailed,
            message="rank 1, step 1: storage is out of reach",
        ),
        "reduces its losses": Fault(
            changed(lambda *a: loss(*a).mean()),
            error=UsageError,
            message=r"rank 1, step 1: loss_fn: .*shape \(\), .* \(1, 5\)",
        ),
        "detaches its losses": Fault(
            changed(lambda *a: loss(*a).detach()),
            error=UsageError,
            message="rank 1, step 1: .*depend on no parameter",
        ),
        "states wrong targets": Fault(
            batch=of_one_part(lambda part: {"row_targets": (4, *part.row_targets[1:])}, targets=1),
            error=Refused,
            message="rank 1, step 1: .*5 loss targets, row_targets says 4",
            under_way=True,
        ),
    }
)
GOVERNED = [*FAULTS]
FAULTS |= {
    "optimizer fails": Fault(optimizer_fails),
    "optimizer fails half way": Fault(optimizer_fails_half_way),
    "optimizer leaves": Fault(optimizer_leaves),
    "exits": Fault(lambda _: leave(SystemExit(3))),
    "interrupted": Fault(lambda _: leave(KeyboardInterrupt())),
    "cancelled": Fault(lambda _: leave(GeneratorExit("stopped"))),
}


def check_one_error(outcomes: Sequence[Ended], kind: type[GovrayError], message: str) -> None:
    for ended in outcomes:
        assert type(ended.error) is kind
        with pytest.raises(kind, match=message):
            raise ended.error
    assert len({str(ended.error) for ended in outcomes}) == 1


@pytest.mark.parametrize("name", GOVERNED)
def test_a_fault_stops_all_ranks_together_and_the_next_step_is_sound(
    two_ranks: RankPool, name: str
) -> None:
    fault, outcomes = FAULTS[name], two_ranks.run(attempt, "governed", name)
    check_one_error(outcomes, fault.error, f"^{fault.message}")
    good = two_ranks.run(undisturbed, "governed", 1, 1)
    for ended, expected in zip(outcomes, good, strict=True):
        assert not ended.moved
        assert not ended.left_gradients
        assert ended.after is None
        assert ended.weights == expected
        # No gradient is sent before the ranks agree.
        assert ended.sent[1] or name in BEFORE_THE_PASS
        assert not ended.sent[1] or name not in BEFORE_THE_PASS
    assert (outcomes[-1].sent[0] > 0) == fault.under_way


def test_the_rank_that_failed_keeps_the_cause(two_ranks: RankPool) -> None:
    healthy, failed = two_ranks.run(attempt, "governed", "before the forward")
    assert "ünknown" in failed.cause
    assert "ünknown" in str(healthy.error)
    assert healthy.cause == "None"


@pytest.mark.parametrize(
    ("aggregator", "name", "at", "max_rows"),
    [  # hosts, steps and passes in turn
        (("ddp", "fsdp2")[place % 2], name, place // 2 % 2, (None, 2)[place // 3])
        for place, name in enumerate(IN_THE_PASS)
    ],
)
def test_a_pass_that_fails_under_a_host_of_torchs_stops_all_ranks(
    two_ranks: RankPool, aggregator: str, name: str, at: int, max_rows: int | None
) -> None:
    outcomes = two_ranks.run(attempt, aggregator, name, at, max_rows)
    check_one_error(outcomes, RankFailed, f"^rank 1, step {at}: ValueError: it broke")
    assert not any(ended.moved for ended in outcomes)
    for ended in outcomes:
        assert type(ended.after) is RankFailed
        assert f"step {at} failed inside torch's" in str(ended.after)
        assert "last checkpoint" in str(ended.after)


@pytest.mark.parametrize("aggregator", ["ddp", "fsdp2"])
def test_after_a_failure_before_any_pass_the_next_step_of_a_host_is_sound(
    two_ranks: RankPool, aggregator: str
) -> None:
    good = two_ranks.run(undisturbed, aggregator, 1, None)
    outcomes = two_ranks.run(attempt, aggregator, "cannot load", 1, None)
    check_one_error(outcomes, RankFailed, UNLOADED)
    assert [ended.weights for ended in outcomes] == good


@pytest.mark.parametrize(
    ("aggregator", "name", "kind", "told"),
    [
        ("governed", "exits", SystemExit, "SystemExit: 3"),
        ("ddp", "interrupted", KeyboardInterrupt, r"KeyboardInterrupt\. "),
        ("fsdp2", "cancelled", GeneratorExit, "GeneratorExit: stopped"),
        ("governed", "optimizer leaves", SystemExit, "SystemExit: 3"),
    ],
)
def test_a_rank_that_leaves_tells_the_others_first(
    two_ranks: RankPool, aggregator: str, name: str, kind: type[BaseException], told: str
) -> None:
    other, leaving = two_ranks.run(attempt, aggregator, name)
    assert type(leaving.error) is kind
    check_one_error([other], RankFailed, f"^rank 1, step 1: .*{told}")


def leaving_silently() -> Ended:
    """The control: what is no `Exception` is not told."""
    with pytest.MonkeyPatch.context() as patch:

        def of(error: BaseException) -> RankFailure:
            if not isinstance(error, Exception):
                raise error
            return RankFailure(str(error))

        patch.setattr(RankFailure, "of", of)
        return attempt("governed", "exits")


@pytest.mark.story
def test_without_a_word_the_others_wait() -> None:
    pool = RankPool(2, timeout=5.0)
    try:
        with pytest.raises((Hung, AssertionError)):
            check_one_error(pool.run(leaving_silently)[:1], RankFailed, "SystemExit")
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("aggregator", "name"),
    [
        ("governed", "optimizer fails"),
        ("ddp", "optimizer fails half way"),
        ("fsdp2", "optimizer fails half way"),
    ],
)
def test_an_optimizer_that_fails_on_one_rank_stops_all(
    two_ranks: RankPool, aggregator: str, name: str
) -> None:
    outcomes = two_ranks.run(attempt, aggregator, name)
    check_one_error(outcomes, RankFailed, "^rank 1, step 1: .*it broke.*last checkpoint")
    for ended in outcomes:
        assert type(ended.after) is RankFailed
        assert "step 1 failed when the weights of some ranks may have moved" in str(ended.after)
    assert outcomes[0].moved  # so going on would be wrong


def alone(self: Agreement, step: int, *given: Any, **_: Any) -> Any:
    """Take one's own failure as final, and the others' health for granted."""
    *sums, failure = given
    if failure is not None:
        raise RankFailed(failure.text, where=f"rank {self.rank}, step {step}")
    return sums[0] if sums else None


def without_third_status() -> Ended:
    """The control: each rank takes its own optimizer for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Agreement, "confirm", alone)
        patch.setattr(GovernedStep, "require_sound", lambda self: None)
        return attempt("governed", "optimizer fails")


def test_without_the_third_status_the_others_move_on_alone(two_ranks: RankPool) -> None:
    went_on, failed = two_ranks.run(without_third_status)
    assert went_on.error is None
    assert failed.error is not None
    # Both then did a next step that raised nothing, with weights that differ.
    assert went_on.after is None
    assert failed.after is None
    assert went_on.weights != failed.weights


def without_second_status() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Agreement, "conclude", alone)
        patch.setattr(Agreement, "confirm", lambda self, step, failure: None)
        here = Run()
        here.step(here.batch(0), loss)
        here.step(here.batch(1), fail if dist.get_rank() == 1 else loss)


def test_without_the_second_status_the_others_do_not_learn_why(two_ranks: RankPool) -> None:
    healthy, failed = two_ranks.outcomes(without_second_status)
    assert "it broke" in str(failed)
    assert "it broke" not in str(healthy)
