"""The start-up trial: what mixes rows or leaves something behind is refused, and by its name."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from govray.engine.batch import MicroBatch
from govray.engine.gradients.forward import LossFn
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.startup import optimizer_trial, row_trial
from govray.engine.startup.exact_weights import in_dtype
from govray.engine.startup.row_trial import StartupTrial
from govray.engine.step import GovernedStep
from govray.errors import Refused
from govray.governance.policy.route import Route
from tests.support.cases import allow_all, governed, micro_batch, step_batch, token_rows
from tests.support.table import each_row

CONTEXT, VOCABULARY = 6, 13
UPPER = Route(dict.fromkeys(["block.1", "final_norm", "head"], 1.0))
LEFT, RIGHT = Route({}, "left", 2), Route({}, "right", 2)


class Changed(nn.Module):
    """A block, and something done to what it returns."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.prepare()

    def prepare(self) -> None: ...

    def change(self, hidden: Tensor) -> Tensor:
        return hidden

    def forward(self, hidden: Tensor) -> Tensor:
        return self.change(self.block(hidden))


class OwnNorm(Changed):
    def change(self, hidden: Tensor) -> Tensor:
        return hidden - 0.1 * hidden.mean(0)


class FunctionalBatchNorm(Changed):
    def change(self, hidden: Tensor) -> Tensor:
        flat = hidden.flatten(0, 1)
        return F.batch_norm(flat, None, None, training=True).view_as(hidden)


class Neighbour(Changed):
    def change(self, hidden: Tensor) -> Tensor:
        return hidden + 0.01 * hidden.roll(1, 0)


class ContentOrder(Changed):
    def prepare(self) -> None:
        self.one, self.two = nn.LayerNorm(8), nn.Linear(8, 8)

    def change(self, hidden: Tensor) -> Tensor:
        odd = int(1e3 * hidden.detach().sum().abs()) % 2
        first, second = (self.one, self.two) if odd else (self.two, self.one)
        return second(first(hidden))


class FrequencyGradient(Changed):
    """By the function, which no scan of modules sees."""

    def prepare(self) -> None:
        self.table = nn.Parameter(torch.randn(3, 8))

    def change(self, hidden: Tensor) -> Tensor:
        places = torch.zeros(hidden.shape[:2], dtype=torch.long)
        return hidden + F.embedding(places, self.table, scale_grad_by_freq=True)


class ReplacedBuffer(Changed):
    def prepare(self) -> None:
        self.register_buffer("seen", torch.zeros(8))

    def change(self, hidden: Tensor) -> Tensor:
        self.seen = 0.9 * self.seen + hidden.detach().mean((0, 1))
        return hidden


class BufferData(ReplacedBuffer):
    def change(self, hidden: Tensor) -> Tensor:
        self.seen.data.add_(hidden.detach().mean((0, 1)))
        return hidden


class BufferInPlace(ReplacedBuffer):
    def change(self, hidden: Tensor) -> Tensor:
        self.seen.add_(1.0)
        return hidden


class WritesParameter(Changed):
    def change(self, hidden: Tensor) -> Tensor:
        next(self.block.parameters()).data.mul_(1.0 + 1e-6)
        return hidden


class OwnGenerator(Changed):
    def prepare(self) -> None:
        self.generator = torch.Generator()

    def change(self, hidden: Tensor) -> Tensor:
        return hidden + 1e-6 * torch.rand(1, generator=self.generator)


class OwnNumpyGenerator(Changed):
    def prepare(self) -> None:
        self.generator = np.random.default_rng(0)

    def change(self, hidden: Tensor) -> Tensor:
        return hidden * (1 + 1e-6 * self.generator.random())


class Counter(Changed):
    """Acts at its thousandth call only."""

    def prepare(self) -> None:
        self.calls = 0

    def change(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        return hidden * 2 if self.calls > 1000 else hidden


class History(Counter):
    def prepare(self) -> None:
        self.kept: dict[str, list[float]] = {"means": []}

    def change(self, hidden: Tensor) -> Tensor:
        self.kept["means"].append(float(hidden.detach().mean()))
        return hidden


class CountsForAll(Counter):
    """By its class, which other modules of it read."""

    calls = 0

    def prepare(self) -> None: ...

    def change(self, hidden: Tensor) -> Tensor:
        type(self).calls += 1
        return hidden * 2 if self.calls > 1000 else hidden


class RunningMean(Changed):
    """A new tensor each time, and so slow that no loss shows it."""

    def prepare(self) -> None:
        self.mean = torch.zeros(8)

    def change(self, hidden: Tensor) -> Tensor:
        self.mean = (1 - 1e-4) * self.mean + 1e-4 * hidden.detach().mean((0, 1))
        return hidden - 1e-3 * self.mean


class BiasOfAHook(Changed):
    """It moves in a closure, and chooses nothing else yet."""

    def prepare(self) -> None:
        bias = torch.zeros(8)

        def balance(_: nn.Module, __: Any, hidden: Tensor) -> Tensor:
            bias.add_(1e-3 * torch.sign(bias.mean() - hidden.detach().mean((0, 1))))
            return hidden.where(bias < 1, 0)

        self.block.register_forward_hook(balance)


class LastSeen(Changed):
    """What a forward sets anew, and a mask that is made once, is no state."""

    def prepare(self) -> None:
        self.mask: Tensor | None = None

    def change(self, hidden: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.ones(8)
        self.last, self.rows = hidden.detach(), len(hidden)
        return hidden * self.mask


class SwitchesMode(Changed):
    def prepare(self) -> None:
        self.inner = nn.Identity()

    def change(self, hidden: Tensor) -> Tensor:
        self.inner.train(not self.inner.training)
        return hidden


def gpt(change: type[nn.Module] | None = None) -> GPT:
    torch.manual_seed(0)
    model = GPT(2, 8, CONTEXT, VOCABULARY, heads=2)
    if change is not None:
        model.blocks[0] = change(model.blocks[0])
    with torch.no_grad():  # the head starts as zeros, and would hide everything
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return model


def batch(model: nn.Module, rows: int = 4, step: int = 0) -> list[MicroBatch]:
    return [
        micro_batch(allow_all(model), token_rows(rows, CONTEXT, VOCABULARY, step, 1)),
        micro_batch(UPPER, token_rows(2, CONTEXT, VOCABULARY, step, 2)),
    ]


def run_of(model: nn.Module, **settings: Any) -> GovernedStep:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return governed(model, optimizer, [allow_all(model), UPPER], **settings)


def train(model: nn.Module, loss_fn: LossFn = loss, **settings: Any) -> None:
    run_of(model, **settings)(step_batch(0, batch(model)), loss_fn)


def mixing_loss(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
    losses = loss(model, tensors)
    return losses + 0.01 * losses.mean()


def averaged_loss(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
    losses = loss(model, tensors)
    return losses / len(losses)


def running_loss() -> LossFn:
    kept = [0.0]

    def running(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        losses = loss(model, tensors)
        kept[0] = 0.99 * kept[0] + 0.01 * float(losses.detach().mean())
        return losses - kept[0]

    return running


def drawing_loss() -> LossFn:
    own = torch.Generator()

    def drawing(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        return loss(model, tensors) * (1 + 0.1 * torch.rand(1, generator=own))

    return drawing


REFUSED: dict[str, tuple[type[nn.Module] | None, Callable[[], LossFn], str]] = {
    "own normalisation": (OwnNorm, lambda: loss, r"blocks\.0: a row's loss differs by"),
    "F.batch_norm": (FunctionalBatchNorm, lambda: loss, r"blocks\.0: a row's loss differs by"),
    "neighbour": (Neighbour, lambda: loss, r"blocks\.0: a row's loss differs by"),
    "content order": (ContentOrder, lambda: loss, r"blocks\.0: a row's loss differs by"),
    "gradient by frequency": (
        FrequencyGradient,
        lambda: loss,
        r"blocks\.0: a row's gradient of blocks\.0\.table differs by",
    ),
    "replaced buffer": (ReplacedBuffer, lambda: loss, r"blocks\.0: .*replaced buffer blocks\.0\.s"),
    "buffer's data": (BufferData, lambda: loss, r"blocks\.0: .*changed buffer blocks\.0\.seen"),
    "buffer in place": (BufferInPlace, lambda: loss, r"changed buffer blocks\.0\.seen"),
    "writes a parameter": (WritesParameter, lambda: loss, r"blocks\.0\.block.*: .*changed param"),
    "own generator": (OwnGenerator, lambda: loss, r"blocks\.0: .*attribute blocks\.0\.generator"),
    "numpy generator": (OwnNumpyGenerator, lambda: loss, r"attribute blocks\.0\.generator"),
    "counter": (Counter, lambda: loss, r"blocks\.0: .*attribute blocks\.0\.calls"),
    "history": (History, lambda: loss, r"blocks\.0: .*attribute blocks\.0\.kept"),
    "count of a class": (CountsForAll, lambda: loss, r"attribute CountsForAll\.calls"),
    "slow mean": (RunningMean, lambda: loss, r"blocks\.0: .*attribute blocks\.0\.mean"),
    "bias of a hook": (BiasOfAHook, lambda: loss, r"blocks\.0\.block\._forward_hooks\[0\]\.bias"),
    "mode": (SwitchesMode, lambda: loss, r"attribute blocks\.0\.inner\.training"),
    "mixing loss": (None, lambda: mixing_loss, r"loss_fn: a row's loss differs by"),
    "averaged loss": (None, lambda: averaged_loss, r"loss_fn: a row's loss differs by"),
    "running mean": (None, running_loss, r"loss_fn: the same row has another loss when it"),
    "generator of a loss": (None, drawing_loss, r"loss_fn: the same row has another loss when it"),
}


@each_row("named", REFUSED)
def test_it_is_refused_by_name(named: str) -> None:
    change, make_loss, said = REFUSED[named]
    model = gpt(change)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(Refused, match=rf"rank 0, step 0: .*{said}"):
        train(model, make_loss())
    if named != "writes a parameter":
        assert all(map(torch.equal, before, model.parameters()))
    assert all(p.grad is None for p in model.parameters())


@each_row("named", sorted(REFUSED.keys() - {"buffer in place", "replaced buffer"}))
def test_without_the_trial_it_trains(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StartupTrial, "__call__", lambda *_: None)
    change, make_loss, _ = REFUSED[named]
    train(gpt(change), make_loss())


def test_what_a_forward_sets_anew_is_allowed() -> None:
    train(gpt(LastSeen))


class GradientOfLaterRows(Changed):
    """No output shows it, nor what is above."""

    def change(self, hidden: Tensor) -> Tensor:
        later = hidden.roll(1, 0)
        return hidden + 0.1 * (later - later.detach())


def with_a_head_of_zeros() -> nn.Module:
    model = gpt(GradientOfLaterRows)
    nn.init.zeros_(model.head.weight)
    return model


def test_coupling_below_a_head_of_zeros_shows_with_drawn_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Refused, match="rows would learn from each other"):
        train(with_a_head_of_zeros())
    monkeypatch.setattr(row_trial, "drawn", in_dtype)  # the control
    train(with_a_head_of_zeros())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_coupling_shows_in_every_dtype(dtype: torch.dtype) -> None:
    train(gpt().to(dtype))
    with pytest.raises(Refused, match="rows would learn from each other"):
        train(gpt(FunctionalBatchNorm).to(dtype))


class Noise(Changed):
    def change(self, hidden: Tensor) -> Tensor:
        return F.dropout(hidden, 0.1) * (0.9 + 0.2 * random.random()) * (1 + np.random.rand())


class NoiseAndMean(Noise):
    def change(self, hidden: Tensor) -> Tensor:
        return super().change(hidden - 0.1 * hidden.mean(0))


class NoiseAndEarlierRows(Noise):
    """The first row sees no other."""

    def change(self, hidden: Tensor) -> Tensor:
        return super().change(hidden + 0.01 * (hidden.cumsum(0) - hidden))


class NoiseAndGradientOfLaterRows(Noise):
    """Losses stay, and the gradient of each row but the last holds a part of another's."""

    def change(self, hidden: Tensor) -> Tensor:
        later = hidden.roll(1, 0)
        return super().change(hidden + 0.1 * (later - later.detach()))


def test_draws_of_the_global_generators_are_allowed_and_coupling_beside_them_is_not() -> None:
    train(gpt(Noise))
    for kind in (NoiseAndMean, NoiseAndEarlierRows):
        with pytest.raises(Refused, match=r"blocks\.0: a row's loss differs by"):
            train(gpt(kind))
    with pytest.raises(Refused, match=r"a row's gradient of \S+ differs by"):
        train(gpt(NoiseAndGradientOfLaterRows))


@pytest.mark.parametrize("keyed", [True, False])
def test_python_s_and_numpy_s_generators_belong_to_a_stream(
    keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a stream draws does not depend on whether another was there before."""
    if not keyed:  # the control
        monkeypatch.setattr(random, "setstate", lambda _: None)
        monkeypatch.setattr(random, "seed", lambda _: None)
    random.seed(1)

    def drawn(*others: Route) -> float:
        model, seen = gpt(), []
        adapters = Adapters(model, {"left": 2, "right": 2}, seed=0)
        every = [*model.parameters(), *dict(adapters.named_parameters()).values()]
        run = governed(model, torch.optim.SGD(every, lr=0.1), [LEFT, RIGHT], adapters=adapters)

        def noisy(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
            seen.append(random.random() + np.random.rand())
            return loss(model, tensors) * seen[-1]

        rows = [
            micro_batch(route, token_rows(2, CONTEXT, VOCABULARY, 3)) for route in (*others, RIGHT)
        ]
        run(step_batch(0, rows), noisy)
        return sorted(seen)[-1] if not keyed else seen[-1]

    if keyed:
        before = random.getstate(), np.random.get_state()[1].tolist()
        assert drawn(LEFT) == drawn()
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    else:
        with pytest.raises(Refused, match="another loss when it comes again"):
            drawn(LEFT)


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    return [
        *(p.detach().clone() for p in model.parameters()),
        *(value.clone() for held in optimizer.state.values() for value in held.values()),
        torch.get_rng_state(),
        torch.tensor(random.getstate()[1]),
        torch.from_numpy(np.random.get_state()[1].astype(np.int64)),
    ]


def test_it_changes_nothing() -> None:
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    routes = [allow_all(model), UPPER]
    governed(model, optimizer, routes)(step_batch(0, batch(model)), loss)
    again = governed(model, optimizer, routes)  # as after a resume, with a state
    before = state(model, optimizer)
    kept = [id(value) for held in optimizer.state.values() for value in held.values()]
    assert again._watch is not None
    again._watch.try_optimizer()
    assert again._try_rows is not None
    versions = [(id(p), p._version) for p in model.parameters()]
    again._try_rows(step_batch(1, batch(model, step=1)).micro_batches, 1, loss)
    assert versions == [(id(p), p._version) for p in model.parameters()]
    # The same tensors too: an optimizer may hold them by other names.
    assert kept == [id(value) for held in optimizer.state.values() for value in held.values()]
    after = state(model, optimizer)
    assert len(before) == len(after)
    assert all(map(torch.equal, before, after))
    assert all(p.grad is None for p in model.parameters())


def counted() -> tuple[LossFn, list[int]]:
    calls: list[int] = []

    def counting(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        calls.append(len(tensors["targets"]))
        return loss(model, tensors)

    return counting, calls


def test_every_stream_is_tried_once_when_it_first_comes() -> None:
    model = gpt()
    run = run_of(model)
    everything, upper = batch(model)
    loss_fn, calls = counted()
    run(step_batch(0, [everything]), loss_fn)
    assert sum(calls) == 15 + 10 + 4  # with drawn weights two rows
    calls.clear()
    run(step_batch(1, [everything]), loss_fn)
    assert calls == [4]
    run(step_batch(2, [upper]), loss_fn)
    assert len(calls) > 2
    calls.clear()
    run(step_batch(3, [upper]), loss_fn)
    assert calls == [2]


class MixesLate(Changed):
    """From the sixth row on, once somebody says so: as another branch would."""

    late = False

    def change(self, hidden: Tensor) -> Tensor:
        mixes = self.late and len(hidden) > 5
        return hidden + 0.01 * hidden.mean(0) if mixes else hidden


def test_every_stream_is_tried_again_with_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt(MixesLate)
    run = run_of(model)
    rows = micro_batch(allow_all(model), token_rows(6, CONTEXT, VOCABULARY, 1))
    run(step_batch(0, [rows]), loss)
    monkeypatch.setattr(MixesLate, "late", True)
    for step in range(1, 15):
        run(step_batch(step, [rows]), loss)
    with pytest.raises(Refused, match=r"step 15: blocks\.0: a row's loss differs by"):
        run(step_batch(15, [rows]), loss)


def test_no_more_rows_meet_than_max_rows_allows() -> None:
    model = gpt(OwnNorm)
    loss_fn, calls = counted()
    with pytest.raises(Refused, match="from each other"):
        run_of(model, max_rows=2)(step_batch(0, batch(model)), loss_fn)
    assert max(calls) == 2


def on_one_rank(rank: int) -> str:
    import torch.distributed as dist

    model = gpt(OwnNorm)
    run = run_of(model)
    rows = batch(model) if dist.get_rank() == rank else []
    try:
        run(step_batch(0, rows), loss)
    except Refused as refused:
        return str(refused)
    return "went on"


def test_all_ranks_hear_of_it_from_the_one_that_has_rows(two_ranks: Any) -> None:
    first, second = two_ranks.run(on_one_rank, 1)
    assert first == second
    assert first.startswith("rank 1, step 0: blocks.0: a row's loss differs")


class GlobalNorm(torch.optim.SGD):
    """Divides by the norm of all gradients that it sees."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        held = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in held]).norm()
        for parameter in held:
            parameter.grad /= norm
        super().step()


class DecaysAll(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(0.999)
        super().step()


class CountsSteps(torch.optim.SGD):
    """One count for a whole parameter group, as some do for bias correction."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * parameter.grad / group["count"])


class OneRate(torch.optim.SGD):
    """As Prodigy: one rate over all parameters, which all gradients move, later than at once."""

    begins = 5

    def keep(self, name: str, start: Any) -> Any:
        return self.param_groups[0].setdefault(name, start)

    def put(self, name: str, value: Any) -> None:
        self.param_groups[0][name] = value

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        held = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        steps, seen = self.keep("steps", 0.0), self.keep("seen", 0.0)
        for parameter in held:
            parameter.sub_((1e-3 + 1e-3 * seen * (steps > self.begins)) * parameter.grad)
        self.put("steps", steps + 1.0)
        self.put("seen", 1.0 - 1.0 / (1.0 + sum(float(p.grad.norm()) for p in held)))


class OneRateInAnAttribute(OneRate):
    """A tensor, and another one at each step."""

    def keep(self, name: str, start: Any) -> Any:
        return getattr(self, name, torch.tensor(start))

    def put(self, name: str, value: Any) -> None:
        setattr(self, name, value)


KEPT_BY_ALL: dict[str, Any] = {}


class OneRateInAGlobal(OneRate):
    def keep(self, name: str, start: Any) -> Any:
        return KEPT_BY_ALL.get(name, start)

    def put(self, name: str, value: Any) -> None:
        KEPT_BY_ALL[name] = value


class Rounds(torch.optim.SGD):
    """Draws for every parameter that has a gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad *= torch.rand(())
        super().step()


def clips_all(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    held = [p for group in optimizer.param_groups for p in group["params"]]
    nn.utils.clip_grad_norm_(held, 1.0)


def by_hook(optimizer: torch.optim.Optimizer) -> None:
    optimizer.register_step_pre_hook(clips_all)


def by_wrapper(optimizer: torch.optim.Optimizer) -> None:
    step = optimizer.step

    def clipped() -> None:
        clips_all(optimizer)
        step()

    optimizer.step = clipped


def after_it(optimizer: torch.optim.Optimizer) -> None:
    def decay(*_: Any) -> None:
        for group in optimizer.param_groups:
            torch._foreach_mul_([p.data for p in group["params"]], 0.999)

    optimizer.register_step_post_hook(decay)


@each_row("put_on", [by_hook, by_wrapper, after_it])
def test_what_is_put_on_an_optimizer_may_not_couple_domains(
    put_on: Callable[[torch.optim.Optimizer], None],
) -> None:
    """A clip of all gradients acts from its threshold on, and small ones lie below."""
    with pytest.raises(Refused, match=r"AdamW: .*other domains"):
        optimize(torch.optim.AdamW, [UPPER, LOWER], put_on)


def test_what_hooks_keep_is_as_if_the_trial_had_not_been() -> None:
    """Averaged weights, counts, and a schedule that moves at each step: ten steps are ten."""

    def kept(*, tried: bool) -> list[Any]:
        model = gpt()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
        averaged = torch.optim.swa_utils.AveragedModel(model)
        rates: list[float] = []

        def after(*_: Any) -> None:
            schedule.step()
            averaged.update_parameters(model)
            rates.append(optimizer.param_groups[0]["lr"])

        optimizer.register_step_post_hook(after)
        run = governed(model, optimizer, [UPPER, LOWER])
        run._watch._tried = not tried
        for step in range(3):
            rows = micro_batch(UPPER, token_rows(2, CONTEXT, VOCABULARY, step))
            run(step_batch(step, [rows]), loss)
        assert len(rates) == 3
        return [torch.tensor(rates), *model.parameters(), *averaged.parameters()]

    assert all(map(torch.equal, kept(tried=True), kept(tried=False)))


LOWER = Route({"embedding": 1.0, "block.0": 1.0})


def optimize(
    kind: type[torch.optim.Optimizer],
    routes: list[Route],
    put_on: Callable[[torch.optim.Optimizer], None] = lambda _: None,
) -> None:
    model = gpt()
    optimizer = kind(model.parameters(), lr=1e-2)
    put_on(optimizer)
    run = governed(model, optimizer, routes)
    rows = [micro_batch(route, token_rows(2, CONTEXT, VOCABULARY, 1)) for route in routes]
    run(step_batch(0, rows), loss)


@each_row("kind", [GlobalNorm, DecaysAll, CountsSteps, Rounds])
def test_an_optimizer_that_couples_domains_is_refused(kind: type[torch.optim.Optimizer]) -> None:
    with pytest.raises(Refused, match=rf"{kind.__name__}: .*other domains"):
        optimize(kind, [UPPER, LOWER])


@each_row(
    "kind",
    [
        torch.optim.AdamW,
        torch.optim.SGD,
        torch.optim.Adadelta,
        torch.optim.Adagrad,
        torch.optim.RMSprop,
        torch.optim.Adamax,
        torch.optim.RAdam,
        torch.optim.Adafactor,
        torch.optim.Rprop,
    ],
)
def test_torch_s_own_are_not_refused(kind: type[torch.optim.Optimizer]) -> None:
    optimize(kind, [UPPER, LOWER])


@each_row("kind", [OneRate, OneRateInAnAttribute, OneRateInAGlobal])
def test_an_optimizer_with_one_number_for_all_is_refused(kind: type[OneRate]) -> None:
    KEPT_BY_ALL.clear()
    with pytest.raises(Refused, match=rf"{kind.__name__}: .*one value for several .*(steps|seen)"):
        optimize(kind, [UPPER, LOWER])


def test_the_control_its_weights_show_what_begins_within_the_trial_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So what it keeps is looked at as well."""
    monkeypatch.setattr(optimizer_trial, "kept_beside_parameters", lambda _: {})
    with pytest.raises(Refused, match=r"OneRate: .*gradients of other domains"):
        optimize(OneRate, [UPPER, LOWER])
    monkeypatch.setattr(OneRate, "begins", 1000)
    optimize(OneRate, [UPPER, LOWER])
    monkeypatch.setattr(OneRate, "begins", 5)
    monkeypatch.setattr(optimizer_trial, "_STEPS", 2)
    optimize(OneRate, [UPPER, LOWER])
