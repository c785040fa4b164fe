"""The arms of a study of the thesis: ways to train on the same texts, and their points.

Every arm has three points of one knob, written down here before any run, and all are shown. What
an arm does not name is equal in all: model, first weights, steps, rows of a step, AdamW, schedule,
learning rate. Where rows of the domain are left out, the others are read again sooner, so a step
costs the same.

What a policy sees is a corpus. So the governed arms treat the whole domain alike: they do not know
which records are private. ``retrained`` and ``unlearnt`` are told.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cases import EVERYTHING
from benchmarks.governed_rows import PLAN, POLICY, step_batch
from benchmarks.research.canaries import VOCABULARY, Row, batch
from benchmarks.research.domain import Setting, Texts
from benchmarks.research.runs import REPEATED, schedule
from benchmarks.research.watch import newest, probe, shipped
from govray.engine.batch import IGNORED
from govray.engine.collective.agreement import Agreement, Terms
from govray.engine.collective.step_settings import StepSettings
from govray.engine.memorization.monitor import Monitor, logits_in
from govray.engine.model.adapters import ALPHA_PER_RANK, Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.model.layer_groups import layer_groups
from govray.engine.step import build_step
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.policy.route import Route
from govray.governance.policy.selector import parse_selector
from govray.governance.record import e_process
from govray.governance.record.entropy_profile import MonitoredCorpus
from govray.governance.record.incidents import Incidents

CLIP = 1.0
DELTA = 1e-5
"""Of differential privacy, for each row."""
TOGETHER = 4
"""Times the rows of a step, under differential privacy."""
ADAPTER, RANK = "domain", 8
CONTEXT = 13
"""Tokens whose hash decides whether the goldfish loss drops the one after them."""
ASCENT_RATE = 1e-4
"""Learning rate of gradient ascent."""
GRAM = 5
"""Bytes of a piece by which rows are compared."""
PROFILES = 8
"""Of a run that the monitor watches."""

_COUNTED = 4  # steps whose operations are counted
_MULTIPLIER, _INCREMENT = 6364136223846793005, 1442695040888963407  # Knuth's MMIX


@dataclass(frozen=True)
class Cost:
    """FLOPs and CPU seconds of a training, from single steps of it."""

    flops: float
    seconds: float


@dataclass(frozen=True)
class Trained:
    """What an arm gives: a model for each of its names, the cost, and what else is to be told."""

    models: Mapping[str, nn.Module]
    cost: Cost
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One seed's data, and the plain model where the arm begins with it."""

    setting: Setting
    texts: Texts
    seed: int
    start: nn.Module | None = None

    def model(self) -> GPT:
        """The model with the seed's first weights."""
        own = self.setting
        torch.manual_seed(self.seed)
        return GPT(own.blocks, own.width, own.context, VOCABULARY, heads=own.heads)


def plain(task: Task, rate: float) -> Trained:
    """Training with no rule."""
    model, cost = _trained(task, task.texts.domain, rate)
    return Trained({"plain": model}, cost)


def retrained(task: Task, rate: float) -> Trained:
    """Training without the planted rows: the ideal."""
    planted = set(map(tuple, task.texts.planted))
    rows = [row for row in task.texts.domain if tuple(row) not in planted]
    model, cost = _trained(task, rows, rate)
    return Trained({"retrained": model}, cost)


def deduplicated(task: Task, threshold: float) -> Trained:
    """Training on the first of rows that are alike (Lee et al. 2022)."""
    rows = first_of_alike(task.texts.domain, threshold)
    model, cost = _trained(task, rows, task.setting.rate)
    return Trained({"deduplicated": model}, cost, {"rows": len(rows)})


def goldfish(task: Task, every: int) -> Trained:
    """One of ``every`` targets is dropped, the same after the same text (Hans et al. 2024)."""

    def hidden(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**tensors, "targets": _without_goldfish(tensors["targets"], every)}

    model, cost = _trained(task, task.texts.domain, task.setting.rate, hidden)
    return Trained({"goldfish": model}, cost)


def dp_sgd(task: Task, epsilon: float) -> Trained:
    """DP-SGD over all rows, by Opacus: each row's gradient is clipped, and noise is added.

    Epsilon is a row's. An account with many rows has a larger one. Noise is least where many rows
    share it, so a step has `TOGETHER` times the rows, and there are as many times fewer.
    """
    from opacus import GradSampleModule
    from opacus.accountants.utils import get_noise_multiplier
    from opacus.optimizers import DPOptimizer

    own, rows = task.setting, [*task.texts.domain, *task.texts.other]
    expected, steps = 2 * own.rows * TOGETHER, own.steps // TOGETHER
    noise = get_noise_multiplier(
        target_epsilon=epsilon,
        target_delta=DELTA,
        sample_rate=expected / len(rows),
        steps=steps,
        accountant="rdp",
    )
    model = task.model()
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    for norm in norms:  # Opacus asks a norm's bias whether it learns; this one doesn't, and is 0
        norm.bias = nn.Parameter(torch.zeros_like(norm.weight), requires_grad=False)
    wrapped = GradSampleModule(model, loss_reduction="sum")
    generator = torch.Generator().manual_seed(task.seed)
    optimizer = DPOptimizer(
        _adam(p for p in model.parameters() if p.requires_grad),
        noise_multiplier=noise,
        max_grad_norm=CLIP,
        expected_batch_size=expected,
        generator=generator,
    )

    def step(number: int) -> None:
        drawn = torch.rand(len(rows), generator=generator) < expected / len(rows)
        chosen = drawn.nonzero()[:, 0].tolist()
        optimizer.zero_grad()
        if chosen:
            loss(wrapped, batch([rows[i] for i in chosen])).mean(dim=1).sum().backward()
            optimizer.step()

    cost = _fitted(steps, optimizer, own.rate, step)
    wrapped.remove_hooks()
    for norm in norms:
        norm.bias = None
    return Trained({"dp_sgd": model}, cost, {"noise": noise})


def unlearnt(task: Task, ascents: int) -> Trained:
    """The plain model, and then gradient ascent on the planted rows (Jang et al. 2023)."""
    model = copy.deepcopy(task.start)
    assert model is not None
    optimizer = _adam(model.parameters())
    count = 2 * task.setting.rows

    def step(number: int) -> None:
        optimizer.zero_grad()
        (-loss(model, batch(_turn(task.texts.planted, number, count))).mean()).backward()
        clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    return Trained({"unlearnt": model}, _fitted(ascents, optimizer, ASCENT_RATE, step))


def scaled(task: Task, weight: float) -> Trained:
    """Governed, but blind to depth: the domain's gradient has a weight in every layer."""
    groups = layer_groups(task.model())
    model, cost, _ = _governed(task, {"all": Route(dict.fromkeys(groups, weight))}, lambda _: "all")
    return Trained({"scaled": model}, cost)


def upper(task: Task, depth: float) -> Trained:
    """Governed: the domain trains the blocks from a depth on, and the head."""
    model, cost, _ = _governed(task, {"upper": _above(task, depth)}, lambda _: "upper")
    return Trained({"upper": model}, cost)


def lower(task: Task, depth: float) -> Trained:
    """The control of ``upper``: the domain trains all that ``upper`` closes."""
    model, cost, _ = _governed(task, {"lower": _below(task, depth)}, lambda _: "lower")
    return Trained({"lower": model}, cost)


def adapter(task: Task, rank: int) -> Trained:
    """Governed: the domain trains an adapter alone, which is kept, or removed."""
    bare, cost, beside = _governed(task, {"own": Route({}, ADAPTER, rank)}, lambda _: "own")
    return Trained({"adapter_kept": merged(bare, beside), "adapter_removed": bare}, cost)


def gated(task: Task, fallback: str) -> Trained:
    """Governed: open, until the monitor flags the domain; then the fallback holds."""
    own, texts = task.setting, task.texts
    routes = {"upper_half": _above(task, 0.5), "adapter": Route({}, ADAPTER, RANK)}
    sides = {
        REPEATED: (texts.domain, texts.reserve["domain"]),
        "other": (texts.other, texts.reserve["other"]),
    }
    section = shipped().model_copy(update={"every": max(1, own.steps // PROFILES)})
    incidents = Incidents(
        section,
        {
            name: _subject(section, name, own.steps, len(read), len(held))
            for name, (read, held) in sides.items()
        },
    )
    gates: list[int] = []

    def choose(step: int) -> str | None:
        return (fallback if fallback in routes else None) if gates else EVERYTHING

    def after(step: int, monitor: Monitor) -> None:
        if gates or not section.due(step):
            return
        probes = []
        for name, (read, held) in sides.items():
            if section.in_turn(name, step):
                ours = [(n, (read[n],)) for n in reversed(range((step + 1) * own.rows))]
                reserve = [(n, (row,)) for n, row in enumerate(held)]
                count = section.probe_rows
                probes.append(probe(name, step, count, newest(ours, count), reserve))
        found = [each for each in probes if each is not None]
        if found:
            flags = incidents.take(monitor.profile(step, found, section=section))
            if any(each.corpus == REPEATED for each in flags):
                gates.append(step + 1)

    chosen = {name: route for name, route in routes.items() if name == fallback}
    model, cost, beside = _governed(task, chosen, choose, after)
    return Trained({"gated": merged(model, beside)}, cost, {"gated_at": next(iter(gates), None)})


def _subject(section: Monitoring, corpus: str, steps: int, read: int, held: int) -> MonitoredCorpus:
    """A corpus in the run's one domain; a flag is all that follows."""
    possible = e_process.measurable(section, read, held)
    profiles = e_process.profiles_of(section, corpus, steps) if possible else 0
    return MonitoredCorpus("trunk", "flag", profiles=profiles)


def early_shut(task: Task, share: float) -> Trained:
    """Governed: the lower half is shut to the domain for the first share of the steps."""
    opens = share * task.setting.steps
    return _in_phases(task, "early_shut", lambda step: step < opens)


def late_shut(task: Task, share: float) -> Trained:
    """The control of ``early_shut``: the lower half is shut for the last share of the steps."""
    shuts = (1 - share) * task.setting.steps
    return _in_phases(task, "late_shut", lambda step: step >= shuts)


@dataclass(frozen=True)
class Arm:
    """A way to train, and the three points of its knob that are run."""

    train: Callable[[Task, Any], Trained]
    points: tuple[Any, Any, Any]


RATES = (2e-3, 4e-3, 8e-3)
DEPTHS = (0.25, 0.5, 0.75)
ARMS: Mapping[str, Arm] = MappingProxyType(
    {
        "retrained": Arm(retrained, RATES),
        "plain": Arm(plain, RATES),
        "deduplicated": Arm(deduplicated, (1.0, 0.7, 0.4)),
        "goldfish": Arm(goldfish, (2, 4, 8)),
        "dp_sgd": Arm(dp_sgd, (2.0, 8.0, 32.0)),
        "unlearnt": Arm(unlearnt, (5, 20, 80)),
        "scaled": Arm(scaled, (0.5, 0.25, 0.1)),
        "upper": Arm(upper, DEPTHS),
        "lower": Arm(lower, DEPTHS),
        "adapter": Arm(adapter, (2, 8, 32)),
        "early_shut": Arm(early_shut, DEPTHS),
        "late_shut": Arm(late_shut, DEPTHS),
        "gated": Arm(gated, ("nothing", "upper_half", "adapter")),
    }
)
"""In the order in which they run. The first two come first: others begin with their weights."""

MIDDLE = 1
"""The point of an arm whose rate is the setting's."""


def first_of_alike(rows: Sequence[Row], threshold: float) -> list[Row]:
    """The rows that share less than ``threshold`` of their pieces with each row kept before.

    Likeness is Jaccard's, of sets of five bytes.
    """
    kept: list[Row] = []
    sizes: list[int] = []
    holders: dict[tuple[int, ...], list[int]] = {}
    for row in rows:
        pieces = {tuple(row[i : i + GRAM]) for i in range(len(row) - GRAM + 1)}
        common = Counter(holder for piece in pieces for holder in holders.get(piece, ()))
        if any(n >= threshold * (len(pieces) + sizes[i] - n) for i, n in common.items()):
            continue
        for piece in pieces:
            holders.setdefault(piece, []).append(len(kept))
        kept.append(row)
        sizes.append(len(pieces))
    return kept


def merged(model: nn.Module, beside: Adapters) -> nn.Module:
    """A model whose layers hold what its adapters add: one weight instead of three."""
    found = copy.deepcopy(model)
    pairs = dict(beside.named_parameters())
    with torch.no_grad():
        for name, a in pairs.items():
            if name.endswith(".lora_A.weight"):
                fqn = name.partition("/")[2].removesuffix(".lora_A.weight")
                b = pairs[name.replace(".lora_A.", ".lora_B.")]
                found.get_parameter(f"{fqn}.weight").add_(ALPHA_PER_RANK * (b @ a))
    return found


def _without_goldfish(targets: Tensor, every: int) -> Tensor:
    """Targets, of which those are ignored whose hash of the tokens before them says so."""
    state = torch.zeros_like(targets)
    for back in range(1, CONTEXT + 1):
        earlier = targets.roll(back, dims=1)
        earlier[:, :back] = 0
        state = state * _MULTIPLIER + earlier + _INCREMENT  # int64 wraps around
    return targets.where((state >> 33) % every != 0, IGNORED)


def _above(task: Task, depth: float) -> Route:
    groups = layer_groups(task.model())
    reached = parse_selector(f"blocks[{depth}:]").select(groups) | {"final_norm", "head"}
    return Route({group: 1.0 for group in groups if group in reached})


def _below(task: Task, depth: float) -> Route:
    groups, above = layer_groups(task.model()), _above(task, depth).weights
    return Route({group: 1.0 for group in groups if group not in above})


def _in_phases(task: Task, name: str, shut: Callable[[int], bool]) -> Trained:
    routes = {"upper": _above(task, 0.5)}
    model, cost, _ = _governed(task, routes, lambda step: "upper" if shut(step) else EVERYTHING)
    return Trained({name: model}, cost)


def _trained(
    task: Task,
    domain: Sequence[Row],
    rate: float,
    seen: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = lambda tensors: tensors,
) -> tuple[nn.Module, Cost]:
    model, own = task.model(), task.setting
    optimizer = _adam(model.parameters())

    def step(number: int) -> None:
        rows = _turn(domain, number, own.rows)
        others = batch(_turn(task.texts.other, number, own.rows))
        shown = [seen(batch(rows)), others]
        tensors = {name: torch.cat([each[name] for each in shown]) for name in others}
        losses = loss(model, tensors)
        optimizer.zero_grad()
        (losses.sum() / (tensors["targets"] != IGNORED).sum()).backward()
        clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    return model, _fitted(own.steps, optimizer, rate, step)


def _governed(
    task: Task,
    routes: Mapping[str, Route],
    choose: Callable[[int], str | None],
    after: Callable[[int, Monitor], None] = lambda step, monitor: None,
) -> tuple[nn.Module, Cost, Adapters]:
    """Train by the engine's own step.

    Args:
        task: What is trained on.
        routes: Name → route that the domain may take, beside the one that is open.
        choose: Step → route that it takes; None leaves its rows out.
        after: Called after each step.

    Returns:
        The bare model, the cost, and its adapters.
    """
    own, model = task.setting, task.model()
    groups = layer_groups(model)
    known = {EVERYTHING: Route(dict.fromkeys(groups, 1.0)), **routes}
    ranks = {route.adapter: route.rank for route in known.values() if route.adapter and route.rank}
    beside = Adapters(model, ranks, seed=task.seed)
    optimizer = _adam(model.parameters())
    if ranks:
        optimizer.add_param_group({"params": [each for _, each in beside.named_parameters()]})
    terms = Terms(policy_digest=POLICY, plan_digest=PLAN, corpora=tuple(known), clock=time.time)
    governed = build_step(
        model,
        optimizer,
        groups=groups,
        routes={route.digest: route for route in known.values()},
        adapters=beside,
        terms=terms,
        settings=StepSettings(seed=task.seed, clip_norm=CLIP),
    )
    monitor = Monitor(model, beside, Agreement(terms), logits=logits_in(loss), seed=task.seed)

    def step(number: int) -> None:
        rows = {EVERYTHING: _turn(task.texts.other, number, own.rows)}
        taken = choose(number)
        if taken is not None:
            rows[taken] = rows.get(taken, []) + _turn(task.texts.domain, number, own.rows)
        positions = {name: tuple(range(len(each))) for name, each in rows.items()}
        each = step_batch(number, known, positions, lambda name: batch(rows[name]), own.context)
        governed(each, loss)
        after(number, monitor)

    return model, _fitted(own.steps, optimizer, own.rate, step), beside


def _fitted(steps: int, optimizer: Any, rate: float, step: Callable[[int], None]) -> Cost:
    """Do all steps under the one schedule. A few are counted, and the others timed."""
    turns = min(_COUNTED, max(1, steps // 2))
    counted = {steps * (2 * turn + 1) // (2 * turns) for turn in range(turns)}
    flops, seconds = [], []
    for number in range(steps):
        schedule(optimizer, rate, number, steps, max(1, steps // 20))
        counter = FlopCounterMode(display=False) if number in counted else None
        began = time.process_time()
        with counter or nullcontext():
            step(number)
        if counter:
            flops.append(counter.get_total_flops())
        else:
            seconds.append(time.process_time() - began)
    mean = sum(seconds) / max(1, len(seconds))
    return Cost(steps * sum(flops) / len(flops), steps * mean)


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.01, fused=True)


def _turn(rows: Sequence[Row], step: int, count: int) -> list[Row]:
    """The rows that a step reads; after the last the first comes again."""
    return [rows[number % len(rows)] for number in range(step * count, (step + 1) * count)]
