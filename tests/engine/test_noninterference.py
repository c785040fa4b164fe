"""A class that may update only its adapter leaves no bit of any other parameter changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from govray.engine import step as step_module
from govray.engine.collective.allreduce import Domain
from govray.engine.collective.bucket_reducer import Reducer
from govray.engine.collective.step_settings import Precision
from govray.engine.gradients.forward import Forward
from govray.engine.model import compiled_blocks
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.model.keyed_dropout import Keyed
from govray.engine.step import GovernedStep
from govray.engine.steps.step_result import StepResult
from govray.governance.policy.route import Route
from govray.governance.record.batch_plan import BatchPlan
from govray.train.checkpoint.optimizer_state import optimizer_state
from tests.support.cases import batch_on, governed
from tests.support.deterministic import deterministic
from tests.support.drawn_rows import VOCABULARY, digest, planned, planned_batch
from tests.support.ranks import RankPool
from tests.support.violations import global_clip, zero_instead_of_absent

STEPS = 6
CONTEXT = 3  # few tokens, because a kernel call's size shows most in small ones
CLIP = 0.1

EVERYTHING = Route(
    weights=dict.fromkeys(("embedding", "block.0", "block.1", "final_norm", "head"), 1.0)
)
UPPER_HALF = Route(weights={"block.1": 0.5, "final_norm": 1.0, "head": 1.0})
NOTES = Route(weights={}, adapter="notes", rank=4)

ROWS = {"open": 20, "weak": 40, "notes": 40}
"""Corpus → rows. ``open`` is read to its end after four steps."""


@dataclass(frozen=True)
class Trained:
    """What a run left behind, as digests."""

    base: dict[str, str]
    adapter: dict[str, str]
    first_base: dict[str, str]
    first_adapter: dict[str, str]
    clipped: bool


def plan(*, notes: str, quotas: dict[str, int]) -> BatchPlan:
    """``open`` at every step, ``weak`` at every second, so step 5 reads ``notes`` alone."""
    streams = {
        route: ({corpus: ROWS[corpus]}, quotas[corpus], every)
        for corpus, route, every in (
            ("open", EVERYTHING, 1),
            ("weak", UPPER_HALF, 2),
            ("notes", NOTES, 1),
        )
        if corpus != "notes" or notes != "absent"
    }
    excluded = ("notes",) if notes == "excluded" else ()
    return planned(streams, steps=STEPS, context=CONTEXT, excluded=excluded)


def train_compiled(notes: str, violation: str | None) -> Trained:
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_blocks, "BACKEND", "aot_eager")
        graphs = torch._dynamo.utils.counters["stats"]
        before = graphs["unique_graphs"]
        trained = train(notes, violation, torch.float32, "fp32", compile=True)
        assert graphs["unique_graphs"] > before
        return trained


@pytest.mark.story
def test_nor_does_it_in_compiled_blocks(two_ranks: RankPool) -> None:
    """Traced and cut as for any backend, and run by torch's own kernels; with its control."""

    def base(notes: str, violation: str | None = None) -> dict[str, str]:
        first, other = two_ranks.run(train_compiled, notes, violation)
        assert other == first
        return first.base

    assert base("trained") == base("absent")
    assert base("trained", "global normaliser") != base("absent", "global normaliser")


def train(
    notes: str,
    violation: str | None,
    dtype: torch.dtype,
    precision: Precision,
    device: str = "cpu",
    **settings: bool,
) -> Trained:
    """One run in one rank process; ``notes`` is trained, absent or excluded."""
    with pytest.MonkeyPatch.context() as patch:
        quotas = {"open": 5, "weak": 3, "notes": 4}
        if violation == "size-proportional quota":
            total = sum(
                rows for name, rows in ROWS.items() if name != "notes" or notes == "trained"
            )
            quotas = {name: max(1, 12 * rows // total) for name, rows in ROWS.items()}
        elif violation is not None:
            VIOLATIONS[violation](patch)
        return _train(
            plan(notes=notes, quotas=quotas),
            notes != "absent",
            dtype,
            precision,
            tries_rows=violation is None,
            device=device,
            **settings,
        )


def _train(
    batch_plan: BatchPlan,
    with_adapter: bool,
    dtype: torch.dtype,
    precision: Precision,
    *,
    tries_rows: bool,
    device: str,
    late: bool = False,
    **settings: bool,
) -> Trained:
    torch.manual_seed(3)
    model = GPT(2, 32, CONTEXT, VOCABULARY, dropout=0.1).to(device, dtype)
    adapters = Adapters(model, {"notes": 4} if with_adapter else {}, seed=5)
    base, own = dict(model.named_parameters()), dict(adapters.named_parameters())
    optimizer = torch.optim.AdamW([*base.values()], lr=1e-2, weight_decay=0.1, fused=late)
    if own:
        optimizer.add_param_group({"params": [*own.values()]})
    routes = [EVERYTHING, UPPER_HALF, *([NOTES] if with_adapter else [])]
    run = governed(
        model,
        optimizer,
        routes,
        adapters=adapters,
        tries_rows=tries_rows,  # it changes no number, and would refuse some violations
        corpora=batch_plan.corpora,
        seed=5,
        clip_norm=CLIP,
        max_rows=2,
        precision=precision,
        late=late,
        **settings,
    )
    first_base = {name: digest(tensor) for name, tensor in base.items()}
    first_adapter = {name: digest(tensor) for name, tensor in own.items()}
    results: list[StepResult] = []
    for step in range(STEPS):
        batch = batch_on(
            planned_batch(batch_plan, step, dist.get_rank(), dist.get_world_size()), device
        )
        results += run.queue(batch, loss)
        assert len(results) == step + (not late)
    results += [last] if (last := run.confirm()) else []
    norms = [norm for each in results for norm in each.grad_norms.values()]
    names = {parameter: name for name, parameter in (base | own).items()}
    states, _ = optimizer_state(optimizer, names)
    digests = {name: digest(tensor) for name, tensor in (base | own | states).items()}
    return Trained(
        base={name: value for name, value in digests.items() if "adapter:" not in name},
        adapter={name: value for name, value in digests.items() if "adapter:" in name},
        first_base=first_base,
        first_adapter=first_adapter,
        clipped=bool(norms) and min(norms) > CLIP,
    )


# How to lose the property. Each replaces one small piece of the engine.


def global_normaliser(patch: pytest.MonkeyPatch) -> None:
    """Divide by all loss targets of the step, whoever they belong to."""
    divide = step_module.divide

    def by_all(domains, sums, targets):
        total = sum(max(targets[name] for name in domain.parameters) for domain in domains)
        divide(domains, sums, {name: count and total for name, count in targets.items()})

    patch.setattr(step_module, "divide", by_all)


def shared_dropout_generator(patch: pytest.MonkeyPatch) -> None:
    """Draw masks from torch's global generator, in the order of the calls."""

    @contextmanager
    def rows(self, step, rows, fewer=()) -> Iterator[None]:
        yield

    def kept(self, fqn, p, inputs):
        return torch.empty_like(inputs).bernoulli_(1 - p) > 0

    patch.setattr(Keyed, "rows", rows)
    patch.setattr(Keyed, "kept", kept)


def shared_kernel_call(patch: pytest.MonkeyPatch) -> None:
    """Let the rows of ``notes`` ride along in every matrix product, and drop their output."""
    queue = GovernedStep.queue
    riders = 0

    def counting(self, batch, loss_fn, **settings):
        nonlocal riders
        riders = sum(len(m.positions) for m in batch.micro_batches if m.stream == NOTES.digest)
        return queue(self, batch, loss_fn, **settings)

    def forward(self, inputs):
        extra = inputs.new_ones(riders, *inputs.shape[1:])
        return F.linear(torch.cat([inputs, extra]), self.weight)[: len(inputs)]

    patch.setattr(GovernedStep, "queue", counting)
    patch.setattr(nn.Linear, "forward", forward)


def shared_bucket(patch: pytest.MonkeyPatch) -> None:
    """Reduce all domains in one flat tensor."""
    start = Reducer.__init__

    def together(self, domains, group=None):
        parameters = {name: p for domain in domains for name, p in domain.parameters.items()}
        groups = frozenset().union(*(domain.groups for domain in domains))
        start(self, [Domain("all", groups, parameters, (tuple(parameters),))], group)

    patch.setattr(Reducer, "__init__", together)


def adapter_read_by_all(patch: pytest.MonkeyPatch) -> None:
    """Let every class read the adapter in its forward."""
    active = Adapters.active
    patch.setattr(
        Adapters, "active", lambda self, name: active(self, "notes" if self.ranks else None)
    )
    # Without a gradient where the route permits none, or the step refuses it.
    start = Forward.__init__

    def reaching(self, *args, **settings):
        start(self, *args, **settings)
        self._reached[None] = self._reached.get("notes", self._reached[None])

    patch.setattr(Forward, "__init__", reaching)


VIOLATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "global normaliser": global_normaliser,
    "global clip": global_clip,
    "zero instead of absent": zero_instead_of_absent,
    "shared dropout generator": shared_dropout_generator,
    "shared kernel call": shared_kernel_call,
    "shared bucket": shared_bucket,
    "adapter read by all": adapter_read_by_all,
}


@pytest.fixture(scope="module")
def trained(request):
    """(world size, notes, violation, dtype) → the run, done once.

    In float64 the bits of a row in a matrix product depend on the number of rows
    at nearly every size, in float32 only at few; so violations are tried in float64.
    """
    runs: dict[tuple[int, str, str | None, torch.dtype, Precision], Trained] = {}

    def get(
        world: int,
        notes: str,
        violation: str | None = None,
        dtype: torch.dtype = torch.float64,
        precision: Precision = "fp32",
    ) -> Trained:
        key = (world, notes, violation, dtype, precision)
        if key not in runs:
            pool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[world])
            first, *others = pool.run(train, notes, violation, dtype, precision)
            assert all(other == first for other in others), "ranks hold different weights"
            runs[key] = first
        return runs[key]

    return get


def company_changes_bits() -> bool:
    """Whether, on this machine, a row's bits depend on the number of rows beside it."""
    rows = torch.randn(6 * CONTEXT, 32, dtype=torch.float64)
    weight = torch.randn(96, 32, dtype=torch.float64)
    together = F.linear(rows, weight)
    return any(
        not torch.equal(F.linear(rows[: n * CONTEXT], weight), together[: n * CONTEXT])
        for n in (1, 2)
    )


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("otherwise", ["absent", "excluded"])
def test_the_adapter_class_changes_no_bit_of_the_base(trained, world, otherwise):
    assert trained(world, "trained").base == trained(world, otherwise).base


@pytest.mark.parametrize(
    ("world", "dtype", "precision"),
    [(4, torch.bfloat16, "bf16"), (2, torch.float32, "bf16-mixed")],
)
def test_nor_does_it_in_lower_precision(trained, world, dtype, precision):
    with_notes, without = (
        trained(world, notes, None, dtype, precision) for notes in ("trained", "absent")
    )
    assert with_notes.base == without.base
    if precision == "bf16-mixed":  # so it was another precision
        assert with_notes.base != trained(world, "trained", None, dtype, "fp32").base


@pytest.mark.parametrize(
    ("dtype", "precision"), [(torch.bfloat16, "bf16"), (torch.float32, "bf16-mixed")]
)
def test_a_global_normaliser_shows_in_lower_precision_too(trained, dtype, precision):
    runs = [
        trained(2, notes, "global normaliser", dtype, precision) for notes in ("trained", "absent")
    ]
    assert runs[0].first_base == runs[1].first_base
    assert any(runs[0].base[name] != runs[1].base[name] for name in runs[0].first_base)


@pytest.mark.parametrize("world", [2, 4])
def test_the_runs_did_something(trained, world):
    with_notes, without = trained(world, "trained"), trained(world, "excluded")
    # Every base weight moved, and every domain was held back by the clip at every step.
    assert all(with_notes.base[name] != old for name, old in with_notes.first_base.items())
    assert with_notes.clipped
    # The adapter learned where it was read, and only there.
    assert all(with_notes.adapter[name] != old for name, old in with_notes.first_adapter.items())
    assert without.adapter == without.first_adapter


@pytest.mark.parametrize(
    ("violation", "world"),
    [
        *((violation, 2) for violation in [*VIOLATIONS, "size-proportional quota"]),
        ("shared bucket", 4),
    ],
)
def test_each_violation_changes_the_base(trained, world, violation):
    with_notes, without = (trained(world, notes, violation) for notes in ("trained", "absent"))
    changed = {
        name for name in with_notes.first_base if with_notes.base[name] != without.base[name]
    }
    if (violation, world) == ("shared bucket", 2):
        # The sum of two numbers has one order: this one can only be seen from three ranks on.
        assert not changed
    elif violation == "shared kernel call" and not company_changes_bits():
        pytest.skip("this machine's matrix product gives a row the same bits in any company")
    else:
        assert changed


def train_late(notes: str, violation: str | None) -> Trained:
    return train(notes, violation, torch.float64, "fp32", late=True)


@pytest.mark.parametrize("ranks", ["one_rank", "two_ranks", "four_ranks"])
def test_nor_does_it_in_late_steps(ranks: str, request: pytest.FixtureRequest) -> None:
    """They are queued over weights that no read has confirmed; with a control."""
    pool: RankPool = request.getfixturevalue(ranks)

    def base(notes: str, violation: str | None = None) -> dict[str, str]:
        first, *others = pool.run(train_late, notes, violation)
        assert all(other == first for other in others), "ranks hold different weights"
        return first.base

    assert base("trained") == base("absent") == base("excluded")
    assert base("trained", "global clip") != base("absent", "global clip")


def train_on_gpu(
    notes: str, violation: str | None, precision: Precision, cuda_graphs: bool, late: bool
) -> Trained:
    launch = torch.cuda.CUDAGraph.replay
    done = 0

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        nonlocal done
        done += 1
        launch(graph)

    with deterministic(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda.CUDAGraph, "replay", counted)
        ways = {"cuda_graphs": cuda_graphs, "late": late}
        trained = train(notes, violation, torch.float32, precision, device="cuda", **ways)
    assert (done > 0) == cuda_graphs
    return trained


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def beside(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    """Ranks that share one GPU and sum over gloo, since nccl wants a GPU for each."""
    pool = RankPool(request.param)
    yield pool
    pool.close()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "ways",
    [(False, False), (False, True), (True, True)],
    ids=["kernels, at once", "kernels", "graphs"],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_nor_does_it_on_a_gpu(
    beside: RankPool, precision: Precision, ways: tuple[bool, bool]
) -> None:
    def runs(notes: str, violation: str | None = None) -> Trained:
        first, *others = beside.run(train_on_gpu, notes, violation, precision, *ways)
        assert all(other == first for other in others), "ranks hold different weights"
        return first

    with_notes, without = runs("trained"), runs("absent")
    assert with_notes.base == without.base == runs("excluded").base
    assert all(with_notes.base[name] != old for name, old in with_notes.first_base.items())
    assert runs("trained") == with_notes
    for violation in ("global normaliser", "global clip", "zero instead of absent"):
        assert runs("trained", violation).base != runs("absent", violation).base, violation
