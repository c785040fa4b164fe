"""What a run tells Ray's metrics agents, and so Prometheus, and what trackers are told of a step.

`DECLARED` is the one list of what there is; Ray puts ``ray_`` before each name. Every series has
the tags ``run`` and ``experiment``.

Invariants:

* Numbers come from what a step has on the host anyway. Nothing is read from a device, drawn at
  random or exchanged between ranks, so the weights are those of a run without metrics.
* Metrics are set at most once in `EVERY_S`, and when a commit is due. Counters then have all steps
  since. Rates and shares are of the same steps.
* The number of series has a bound. Adapters share one series, for there may be hundreds.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from ray.util import metrics as ray_metrics
from torch import nn

from govray.engine.steps.step_result import StepResult
from govray.governance.policy.route import ADAPTER
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.e_process import least_odds
from govray.governance.record.entropy_profile import EntropyProfile
from govray.train.inputs.order import Order

EVERY_S = 1.0
MOST_GROUPS = 256
"""Layer groups that have series of their own; the first in the model's order."""
MOST_CORPORA = 128
"""Corpora that have a series of their odds; the first by name."""

ADAPTERS = "adapters"
"""What stands for all adapters where a series is for one layer group."""

PREFIX = "ray_"
"""Of every name, where Prometheus reads it."""

Stall = Literal["data", "agreement", "commit"]
"""What a step waited for."""


@dataclass(frozen=True)
class Declared:
    """One metric.

    Attributes:
        name: Without Ray's prefix. A counter's ends in ``_total``, as Prometheus has it.
        what: For people, with its unit.
        tag: What tells its series of one run apart, if there are several.
    """

    name: str
    what: str
    tag: str | None = None

    @property
    def counts(self) -> bool:
        """Whether it only ever goes up."""
        return self.name.endswith("_total")


STEPS = Declared("govray_steps_total", "Steps done, those done again after a restart too")
TOKENS = Declared("govray_tokens_total", "Loss targets trained on")
TARGETS = Declared(
    "govray_layer_group_targets_total",
    "Loss targets that updated a layer group: N_l",
    "layer_group",
)
STALLS = Declared("govray_stall_seconds_total", "Seconds that rank 0 waited", "stall")
STEP = Declared("govray_step", "The last step done")
MAX_STEPS = Declared("govray_max_steps", "Steps of the batch plan")
LOSS = Declared("govray_loss", "Mean loss over the loss targets of the last step")
RATE = Declared("govray_tokens_per_second", "Loss targets a second, over all ranks")
STEP_SECONDS = Declared("govray_step_seconds", "Mean seconds of a step, without reading its rows")
WORLD = Declared("govray_world_size", "Ranks")
SHARE = Declared(
    "govray_permitted_share", "Share of the loss targets that updated a layer group", "layer_group"
)
PARAMETER_SHARE = Declared(
    "govray_permitted_parameter_share",
    "The same over the base model, each layer group weighted by its parameters",
)
ODDS = Declared(
    "govray_memorization_odds",
    "Lower 95 % bound of a corpus's odds ratio against its reserve when last measured",
    "corpus",
)
QUARANTINED = Declared("govray_quarantined_records", "Records refused when data were admitted")
LAG = Declared("govray_ledger_lag_steps", "Steps that no whole commit has yet")

DECLARED = (
    STEPS,
    TOKENS,
    TARGETS,
    STALLS,
    STEP,
    MAX_STEPS,
    LOSS,
    RATE,
    STEP_SECONDS,
    WORLD,
    SHARE,
    PARAMETER_SHARE,
    ODDS,
    QUARANTINED,
    LAG,
)

TAGS = ("run", "experiment")


class RunMetrics:
    """The metrics of one worker's run; on ranks other than 0 nothing is kept.
    ``model``: whose parameters weigh the layer groups."""

    def __init__(self, order: Order, model: nn.Module, *, writes: bool) -> None:
        self._writes = writes
        self._stalls: defaultdict[str, float] = defaultdict(float)
        if not writes:
            return
        tensors = dict(model.named_parameters())
        self._parameters = {
            group: sum(tensors[fqn].numel() for fqn in fqns) for group, fqns in order.groups.items()
        }
        self._shown = frozenset(list(order.groups)[:MOST_GROUPS])
        self._corpora = frozenset(order.plan.corpora[:MOST_CORPORA])
        self._series = {each: _make(each, order) for each in DECLARED}
        self._targets: Counter[str] = Counter()  # N_l, of the steps since the last publication
        self._steps, self._tokens, self._seconds = 0, 0, 0.0
        self._agreed = 0.0  # seconds that the agreement had waited by then
        self._since = time.perf_counter()
        # Ray forgets a gauge that is not set again for a while: what stands is set at each turn.
        self._standing: dict[tuple[Declared, str | None], float] = {
            (MAX_STEPS, None): order.stop,
            (QUARANTINED, None): sum(q.records for q in order.manifest.quarantine),
        }
        self._stand()

    @contextmanager
    def waiting(self, stall: Stall) -> Iterator[None]:
        """Count the seconds inside as waited for this."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._stalls[stall] += time.perf_counter() - began

    def stepped(self, result: StepResult, seconds: float, *, agreed: float, lag: int) -> None:
        """A step was done.

        Args:
            agreed: Seconds that all agreements so far have waited.
            lag: Steps that no whole commit has.
        """
        if not self._writes:
            return
        tokens = sum(targets for _, targets in result.corpus_counts.values())
        self._steps += 1
        self._tokens += tokens
        self._seconds += seconds
        for group, targets in result.group_targets.items():
            self._targets[ADAPTERS if group.startswith(ADAPTER) else group] += targets
        self._stalls["agreement"] += agreed - self._agreed
        self._agreed = agreed
        if time.perf_counter() - self._since >= EVERY_S:
            self._publish(result, lag)

    def measured(self, profile: EntropyProfile) -> None:
        if not self._writes:
            return
        for corpus in sorted(profile.corpora & self._corpora):
            self._standing[ODDS, corpus] = least_odds(profile.of(corpus))
        self._stand()

    def committing(self, result: StepResult, lag: int) -> None:
        """A commit is due: a run that ends, or waits for one, has its last steps published."""
        if self._writes and self._steps:
            self._publish(result, lag)

    def _stand(self) -> None:
        for (each, corpus), value in self._standing.items():
            self._series[each].set(value, tags={"corpus": corpus} if corpus else None)

    def _publish(self, result: StepResult, lag: int) -> None:
        self._stand()
        now = time.perf_counter()
        of = self._series
        of[STEPS].inc(self._steps)
        of[STEP].set(result.step)
        of[LAG].set(lag)
        of[WORLD].set(result.world_size)
        of[STEP_SECONDS].set(self._seconds / self._steps)
        if now > self._since:
            of[RATE].set(self._tokens / (now - self._since))
        if result.loss == result.loss:  # a step of conversations may have no loss target
            of[LOSS].set(result.loss)
        for stall, seconds in self._stalls.items():
            if seconds > 0:
                of[STALLS].inc(seconds, tags={"stall": stall})
        if self._tokens:
            of[TOKENS].inc(self._tokens)
            self._publish_groups()
        self._steps, self._tokens, self._seconds, self._since = 0, 0, 0.0, now
        self._targets.clear()
        self._stalls.clear()

    def _publish_groups(self) -> None:
        for group, targets in self._targets.items():
            if group != ADAPTERS and group not in self._shown:
                continue
            tags = {"layer_group": group}
            if targets:
                self._series[TARGETS].inc(targets, tags=tags)
            if group != ADAPTERS:
                self._series[SHARE].set(targets / self._tokens, tags=tags)
        weighted = sum(self._targets[g] * count for g, count in self._parameters.items())
        self._series[PARAMETER_SHARE].set(
            weighted / (self._tokens * sum(self._parameters.values()))
        )


def _make(declared: Declared, order: Order) -> Any:
    kind: Any = ray_metrics.Counter if declared.counts else ray_metrics.Gauge
    tags = TAGS if declared.tag is None else (*TAGS, declared.tag)
    made = kind(declared.name, description=declared.what, tag_keys=tags)
    made.set_default_tags({"run": order.run_id, "experiment": order.experiment.name})
    return made


MOST_STREAMS = 64
"""Streams whose losses are told; the first by label."""


def stream_labels(plan: BatchPlan) -> dict[str, str]:
    """Stream id → its profile, and its first corpus where several streams have that profile."""
    profiles = [stream.profile for stream in plan.streams]
    labels = {
        stream.id: stream.profile
        if profiles.count(stream.profile) == 1
        else f"{stream.profile}.{stream.corpora[0].corpus}"
        for stream in plan.streams
    }
    kept = sorted(labels, key=labels.__getitem__)[:MOST_STREAMS]
    return {stream: labels[stream] for stream in kept}


def scalars(
    result: StepResult,
    own: Mapping[str, float],
    reported: Mapping[str, object],
    labels: Mapping[str, str],
) -> tuple[int, dict[str, float]]:
    """The step, and name → value of every finite number that is known of it.
    ``labels``: of the streams whose losses are told."""
    found: dict[str, object] = dict(own)
    if own.get("seconds"):
        found["tokens_per_second"] = own["targets"] / own["seconds"]
    for stream, loss in result.stream_losses.items():
        if stream in labels:
            found[f"stream_loss/{labels[stream]}"] = loss
    found |= reported
    del found["step"]
    return result.step, {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
