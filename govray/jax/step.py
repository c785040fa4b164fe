"""One governed optimizer step over JAX. For every layer group l, over all ranks and passes,

    grad_l  =  (1 / N_l) · Σ_i  w_il · ∂ℓ_i/∂θ_l,      N_l = #{loss targets i : w_il > 0}

and where N_l = 0 there is no gradient, so the optimizer leaves l alone: no momentum, no decay, no
step count.

The order is fixed, and is that of ``FlaxStep.__call__``: a pass for each route → the exchange →
sum over processes → divide by N_l → norm of each domain → clip per domain → optimizer → the second
status → the weights are put into the model.

Invariants:

* No weight of any rank has moved before all ranks have computed theirs. JAX's arrays are values, so
  new weights stand beside the old ones until the second status.
* What a domain's weights become depends on that domain's rows alone: its own count, its own clip,
  its own sums, passes and programs of its own.
* An error on one rank is raised on all.

Every pass has rows of one route. Nothing overlaps the exchange. Gradient norms by corpus are not
measured.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax import Array

from govray.errors import InfrastructureFailed, RankFailed, Refused, UsageError
from govray.governance.policy.route import ADAPTER, Route
from govray.jax import domain_gradients
from govray.jax.group_optimizer import GroupOptimizer
from govray.jax.keyed_dropout import row_keys
from govray.jax.layer_groups import layer_groups
from govray.jax.lora import first_pairs
from govray.jax.named_parameters import named_parameters
from govray.jax.processes import Processes
from govray.jax.routed_pass import LossFn, ModelShape, PassRoute, model_shape, routed_pass
from govray.steps.batch import IGNORED, MicroBatch, StepBatch
from govray.steps.first_exchange import FirstExchange, Terms
from govray.steps.rank_failure import FirstFailure, RankFailure, status, stop_if_failed
from govray.steps.routed import (
    Routed,
    count_targets,
    named_domains,
    require_planned,
    resolve_parameters,
)
from govray.steps.step_result import StepResult, loss_per_target


class FlaxStep:
    """Performs governed steps in one process; call it with a batch and a loss function.

    `build_step` makes one. Making one is collective, as is calling it.

    Attributes:
        adapters: The adapters' parameters by name: ``adapter:<name>/<FQN>.lora_A.weight``.
        groups: Layer group → names of parameters, adapters' groups included.
        optimizer: The optimizer's states by layer group.
        processes: Of the run.
    """

    def __init__(
        self,
        model: nnx.Module,
        *,
        adapters: dict[str, Array],
        groups: Mapping[str, Sequence[str]],
        streams: Mapping[str, Routed],
        alternatives: Mapping[str, Collection[str]],
        domains: Mapping[str, frozenset[str]],
        optimizer: GroupOptimizer,
        terms: Terms,
        seed: int,
        clip_norm: float | None,
        max_rows: int | None,
    ) -> None:
        self.adapters = adapters
        self.groups = groups
        self.optimizer = optimizer
        self.processes = Processes()
        self._model = model
        self._variables = named_parameters(model)
        self._group_of = {name: group for group, names in groups.items() for name in names}
        self._streams = streams
        self._alternatives = alternatives
        self._domains = domains
        self._place_of = {g: place for place, own in enumerate(domains.values()) for g in own}
        self._seed = seed
        self._clip_norm = clip_norm
        self._max_rows = max_rows
        self._terms = terms
        self._left_out: Mapping[str, str] = {}
        self._rerouted: Mapping[str, str] = {}
        self._first = FirstExchange(terms, tuple(groups))
        parameters = self.parameters
        setup = {
            "parameters": {n: [list(p.shape), str(p.dtype)] for n, p in parameters.items()},
            "groups": {group: list(names) for group, names in groups.items()},
            "streams": {name: dict(routed.weights) for name, routed in streams.items()},
            "alternatives": {name: sorted(each) for name, each in sorted(alternatives.items())},
            "clipNorm": clip_norm,
            "seed": seed,
        }
        self._first.require_one_setup(self.processes.gather(self._first.setup_row(setup)))

    @property
    def parameters(self) -> dict[str, Array]:
        """All parameters by name, the model's as they are now, and the adapters'."""
        own = {name: variable.get_value() for name, variable in self._variables.items()}
        return own | self.adapters

    def leave_out(self, corpora: Mapping[str, str]) -> None:
        """From the next step on, accept no row of these corpora. Equal on all ranks.

        Args:
            corpora: Corpus → its name in ``valid_until``, which no longer matters.
        """
        self._left_out = dict(corpora)
        self._agree_on_gates()

    def reroute(self, corpora: Mapping[str, str]) -> None:
        """From the next step on, accept rows of these corpora by these routes only.

        Args:
            corpora: Corpus → digest of an alternative to its stream's route;
                `StepBatch.rerouted` sends its rows there. Equal on all ranks.
        """
        self._rerouted = dict(corpora)
        self._agree_on_gates()

    def _agree_on_gates(self) -> None:
        rerouted = (f"{corpus} by {route}" for corpus, route in self._rerouted.items())
        self._first.leave_out([*self._left_out.values(), *rerouted])

    def __call__(self, batch: StepBatch, loss_fn: LossFn) -> StepResult:
        """Do one step, on all ranks together. Collective.

        Args:
            batch: This rank's part; its tensors are numpy's.
            loss_fn: Unreduced losses; positions whose target is −100 don't count. The same
                function in every step: each other one is compiled anew.

        Raises:
            RankFailed: A rank could not load or compute, or its gradient is not finite.
            Refused: Ranks differ in policy, plan or step, or the model can't be routed.
            NoLongerValid: Something expired or was revoked. The step can be done again without it.
            UsageError: The batch or the losses have a wrong shape.
            InfrastructureFailed: Another process is gone.
        """
        here = FirstFailure()
        sums: dict[str, Array] = {}
        losses = np.zeros((len(self._streams), 2))
        targets: dict[str, int] = {}
        with here.noted():
            self._check(batch)
            sums, losses = self._passes(batch, loss_fn)
            targets = count_targets(self.groups, self._streams, batch.micro_batches)
        row = self._first.row(self.processes.rank, batch.step, targets, batch.corpora, here.failure)
        rows = self.processes.gather(row)
        self._first.stop_if_failed(rows, here.failure, self.processes.texts)
        agreed = self._first.settle(rows)

        whole = {
            domain: self._summed(names, sums, agreed.group_targets)
            for domain, names in self._live(agreed.group_targets).items()
        }
        moved: dict[str, tuple[dict[str, Array], Any]] = {}
        norms: dict[str, float] = {}
        after = FirstFailure()
        with after.noted():
            lengths = {domain: domain_gradients.norm(own) for domain, own in whole.items()}
            for domain, gradients in whole.items():
                norms[domain] = self._finite(batch.step, float(lengths[domain]), gradients)
                moved |= self._moved(batch.step, self._clipped(gradients, lengths[domain]))
            jax.block_until_ready(moved)
        total = self._conclude(batch.step, losses, after.failure)
        for group, (parameters, state) in moved.items():
            self.optimizer.states[group] = state
            self._put(parameters)
        return StepResult(
            step=batch.step,
            loss=loss_per_target(*total.sum(0).tolist()),
            stream_losses={
                stream: loss_per_target(*own)
                for stream, own in zip(self._streams, total.tolist(), strict=True)
                if own[1]
            },
            group_targets=agreed.group_targets,
            corpus_counts=agreed.corpus_counts,
            world_size=self.processes.world_size,
            grad_norms=norms,
            time=agreed.time,
        )

    def _check(self, batch: StepBatch) -> None:
        """See that the batch is loaded, and is one of this run."""
        where = f"step {batch.step}"
        if batch.error is not None:
            lost = InfrastructureFailed if batch.unreachable else RankFailed
            kind = Refused if batch.refused else lost
            raise kind(f"could not load its batch: {batch.error}")
        if used := sorted(self._left_out.keys() & batch.corpora.keys()):
            raise Refused(
                f"rows of corpus {used[0]}, whose credential no longer holds", where=where
            )
        batch.check(self._streams, self._terms.corpora, self._rerouted)
        require_planned(batch.micro_batches, self._alternatives)
        for each in batch.micro_batches:
            targets = np.asarray(each.tensors["targets"]).reshape(len(each.positions), -1)
            counted = (targets != IGNORED).sum(1).tolist()
            if counted != list(each.row_targets):
                raise Refused(
                    f"a micro-batch of stream {each.stream} holds {sum(counted)} loss "
                    f"targets, row_targets says {each.targets}",
                    where=where,
                    do="Count the targets that are not −100",
                )

    def _passes(
        self, batch: StepBatch, loss_fn: LossFn
    ) -> tuple[dict[str, Array], np.ndarray[Any, np.dtype[np.float64]]]:
        """Σ_i w_il ∂ℓ_i/∂θ_l over this rank's rows, and (loss, targets) of each route."""
        shape, rest = model_shape(self._model)
        parameters = self.parameters
        sums: dict[str, Array] = {}
        totals: list[tuple[str, Array, int]] = []
        for part in self._planned(batch.micro_batches):
            total, gradients = routed_pass(
                shape,
                *self._sides(shape, part, parameters, loss_fn),
                rest=rest,
                keys=row_keys(self._seed, batch.step, part.stream, part.positions),
                tensors=dict(part.tensors),
            )
            shared = {name: sums[name] for name in gradients if name in sums}
            sums |= domain_gradients.added(shared, gradients)
            totals.append((part.route, total, part.targets))
        jax.block_until_ready(sums)
        losses = np.zeros((len(self._streams), 2))
        places = {stream: place for place, stream in enumerate(self._streams)}
        for route, total, targets in totals:
            losses[places[route]] += (float(total), targets)
        return sums, losses

    def _sides(
        self, shape: ModelShape, part: MicroBatch, parameters: Mapping[str, Array], loss_fn: LossFn
    ) -> tuple[PassRoute, LossFn, dict[str, Array], dict[str, Array]]:
        """What of the parameters the rows may move, and what is constant to them."""
        routed = self._streams[part.route]
        read = [name for name, _ in shape.paths]
        if routed.adapter is not None:
            read += self.groups[f"{ADAPTER}{routed.adapter}"]
        learning = {name: parameters[name] for name in read if name in routed.weights}
        constant = {name: parameters[name] for name in read if name not in routed.weights}
        route = PassRoute(tuple(sorted(routed.weights.items())), routed.adapter)
        return route, loss_fn, learning, constant

    def _planned(self, micro_batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """The passes in the order of domains, then of routes; none has more than ``max_rows``."""

        def place(each: MicroBatch) -> tuple[int, str, str]:
            return self._domain_of(each.route), each.route, each.stream

        return [
            each.cut(start, start + size)
            for each in sorted(micro_batches, key=place)
            for size in [self._max_rows or len(each.positions)]
            for start in range(0, len(each.positions), size)
        ]

    def _domain_of(self, route: str) -> int:
        return self._place_of[next(iter(self._streams[route].groups))]

    def _live(self, targets: Mapping[str, int]) -> dict[str, list[str]]:
        """Domain → names of its parameters with N_l > 0, if there are any; the same everywhere."""
        found: dict[str, list[str]] = {}
        for name, group in self._group_of.items():
            if targets[group]:
                domain = [*self._domains][self._place_of[group]]
                found.setdefault(domain, []).append(name)
        return {domain: found[domain] for domain in self._domains if domain in found}

    def _summed(
        self, names: Sequence[str], sums: Mapping[str, Array], targets: Mapping[str, int]
    ) -> dict[str, Array]:
        """(1 / N_l) Σ_ranks. Collective."""
        parameters = self.parameters
        like = {name: parameters[name] for name in names}
        total = domain_gradients.summed(self.processes, sums, like)
        counts = {name: targets[self._group_of[name]] for name in names}
        return domain_gradients.divided(total, counts)

    def _finite(self, step: int, length: float, gradients: Mapping[str, Array]) -> float:
        """A norm is finite only if all its gradients are; all ranks hold the same ones."""
        if not math.isfinite(length):
            for name, gradient in gradients.items():
                if not np.isfinite(np.asarray(gradient, dtype=np.float64)).all():
                    raise RankFailed(
                        f"the gradient of {name} is not finite",
                        where=f"step {step}",
                        do="All ranks stopped before any weight moved. Lower the learning rate, "
                        "or look at this step's rows",
                    )
        return length

    def _clipped(self, gradients: dict[str, Array], length: Array) -> dict[str, Array]:
        """One domain's gradients, by its own norm."""
        if self._clip_norm is None:
            return gradients
        return domain_gradients.clipped(gradients, length, self._clip_norm)

    def _moved(
        self, step: int, gradients: Mapping[str, Array]
    ) -> dict[str, tuple[dict[str, Array], Any]]:
        """Layer group → its weights and state after the optimizer, for those that have one."""
        parameters = self.parameters
        found = {}
        for group in dict.fromkeys(self._group_of[name] for name in gradients):
            names = self.groups[group]
            found[group] = self.optimizer.moved(
                group,
                step,
                {name: parameters[name] for name in names},
                {name: gradients[name] for name in names},
            )
        return found

    def _conclude(
        self, step: int, losses: np.ndarray[Any, Any], failure: RankFailure | None
    ) -> np.ndarray[Any, Any]:
        """The second status, with the sums behind the step's losses. Collective."""
        bits = struct.unpack(f"={losses.size}q", losses.astype(np.float64).tobytes())
        rows = self.processes.gather([status(failure), *bits])
        statuses = [row[0] for row in rows]
        stop_if_failed(statuses, [step] * len(rows), failure, self.processes.texts)
        each = [np.array(row[1:], dtype=np.int64).view(np.float64) for row in rows]
        return np.sum(each, axis=0).reshape(losses.shape)

    def _put(self, parameters: Mapping[str, Array]) -> None:
        for name, value in parameters.items():
            if name in self.adapters:
                self.adapters[name] = value
            else:
                self._variables[name].set_value(value)


def build_step(
    model: nnx.Module,
    optimizer: optax.GradientTransformation,
    *,
    routes: Mapping[str, Route],
    terms: Terms,
    groups: Mapping[str, Sequence[str]] | None = None,
    alternatives: Mapping[str, Collection[str]] = MappingProxyType({}),
    seed: int = 17,
    clip_norm: float | None = 1.0,
    max_rows: int | None = None,
) -> FlaxStep:
    """A governed step with all that it works with. Collective.

    Args:
        model: Equal on all ranks. A step puts new weights into it.
        optimizer: It is given one layer group at a time, as a flat mapping of names to arrays.
        routes: Stream id → route, of every class that was admitted, alternatives included.
        terms: What the run's steps rest on: policy, plan, corpora, and how long each holds.
        groups: Layer group → FQNs; by default those of `layer_groups`.
        alternatives: Stream id → digests of the other routes that its rows may take: those of
            later phases, and of a gate's fallback.
        seed: Of dropout and of the adapters' first weights.
        clip_norm: Largest gradient norm of a domain; None does not clip.
        max_rows: Rows that go through the model together; None for all of a route.

    Raises:
        Refused: The model or the optimizer can't be routed exactly, a route does not fit, a
            parameter escapes governance, or ranks hold different set-ups.
        UsageError: A number is out of range.
    """
    for name, value in (("clip_norm", clip_norm), ("max_rows", max_rows)):
        if value is not None and not value > 0:
            raise UsageError(f"{name} is {value}", do="Give a number above 0, or None")
    own = named_parameters(model)
    base = dict(layer_groups(model) if groups is None else groups)
    _require_governed(own, base)
    ranks = {r.adapter: r.rank for r in routes.values() if r.adapter and r.rank}
    adapters = first_pairs(model, ranks, seed)
    whole = dict(base)
    for name in adapters:
        group = name.partition("/")[0]
        whole[group] = (*whole.get(group, ()), name)
    parameters = {name: variable.get_value() for name, variable in own.items()} | adapters
    return FlaxStep(
        model,
        adapters=adapters,
        groups=whole,
        streams={
            stream: resolve_parameters(route, whole, parameters)
            for stream, route in sorted(routes.items())
        },
        alternatives=alternatives,
        domains=named_domains(base, routes, alternatives),
        optimizer=GroupOptimizer(optimizer, whole, parameters),
        terms=terms,
        seed=seed,
        clip_norm=clip_norm,
        max_rows=max_rows,
    )


def _require_governed(
    parameters: Mapping[str, nnx.Variable], groups: Mapping[str, Sequence[str]]
) -> None:
    """Every parameter is in one group, and none is in float16."""
    listed = [name for names in groups.values() for name in names]
    if sorted(listed) != sorted(parameters):
        odd = sorted({*parameters} ^ {*listed}) or sorted(
            {name for name in listed if listed.count(name) > 1}
        )
        raise Refused(
            f"the layer groups do not hold each parameter exactly once: see {odd[0]}",
            where="groups",
            do="Take the groups from layer_groups(model, ...)",
        )
    for name, variable in parameters.items():
        if variable.get_value().dtype == np.float16:
            raise Refused(
                "gradients in float16 vanish without loss scaling, and a scale that adapts would "
                "couple domains: one's overflow would change what the others learn",
                where=name,
                do="Use bfloat16",
            )
