"""What the driver hands every worker: the verified facts of one run, and no key.

An order is built once, on the driver, after the policy and every credential have been verified.
Workers compare it with what they find: layer groups, plan digest, policy digest. They stop together
on a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from typing import Any

import torch

from govray.engine.collective.step_settings import StepSettings
from govray.governance.attestation.environment import SourceCode
from govray.governance.policy.corpus_routes import Fallback
from govray.governance.policy.route import Route
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.prepare_manifest import Manifest
from govray.train.inputs.experiment_config import Experiment
from govray.train.inputs.gating import UNDECIDED, Decisions, OnExpiry
from govray.train.inputs.monitored import Monitored
from govray.train.inputs.pretrained_start import Start
from govray.train.inputs.revocation_feed import RevocationSource


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The validation data, packed. ``prepared``: their folder."""

    prepared: str
    manifest: Manifest


@dataclass(frozen=True, kw_only=True)
class Order:
    """One run as every worker must see it.

    Attributes:
        experiment: What the user chose. In a replay it is not judged, and nothing follows a log.
        folder: The run's folder on storage that rank 0 and the driver share.
        prepared: Folder of the admitted shards.
        manifest: The verified prepare manifest.
        routes: Stream id to route; and the routes of later phases and fallbacks, by digest.
        fallbacks: Corpus to the fallback that a gate sends it to, of the corpora that are read.
        groups: Layer group to FQNs, as discovered on the driver.
        policy_groups: The policy's own layer groups (name to FQN globs).
        expiries: What expires, by name, and when; checked at every step.
        revocations: How rank 0 follows revocation lists, if the run does.
        decisions: Of the run that this one replays; what it gated, and for how many steps.
        start: Existing weights that the model begins with, if any.
        until: The step before which the run commits and ends, for a replay of some steps; the
            plan's last by default.
        source: The code that the model or the loop comes from, as the driver found it.
        monitored: What the policy asks of its monitor, if it has one; a replay measures nothing.
        held_out: The data that the run is judged by; None if its loop measures, or nobody.
        commit_at: Further numbers of steps done at which a commit is due.
        driver: Number of the driver that gave the order; a later one shuts this one's workers out.
    """

    run_id: str
    experiment: Experiment
    folder: str
    prepared: str
    manifest: Manifest
    manifest_digest: str
    plan: BatchPlan
    routes: Mapping[str, Route]
    groups: Mapping[str, tuple[str, ...]]
    policy_groups: Mapping[str, tuple[str, ...]]
    policy_digest: str
    expiries: Mapping[str, datetime]
    fallbacks: Mapping[str, Fallback] = field(default_factory=dict)
    start: Start | None = None
    until: int | None = None
    source: SourceCode | None = None
    on_expiry: OnExpiry = "stop"
    revocations: RevocationSource | None = None
    decisions: Decisions = UNDECIDED
    monitored: Monitored | None = None
    held_out: HeldOut | None = None
    commit_at: Collection[int] = ()
    driver: int = 0

    @cached_property
    def settings(self) -> StepSettings:
        """How a step computes."""
        return self.experiment.settings

    @property
    def stop(self) -> int:
        """The first step that the run leaves out."""
        return self.plan.max_steps if self.until is None else self.until

    @property
    def phased(self) -> dict[str, Route]:
        """Corpus to route, of the corpora that are read and whose route has phases."""
        return {
            each.corpus: self.routes[stream.id]
            for stream in self.plan.streams
            if stream.id in self.routes and self.routes[stream.id].phases
            for each in stream.corpora
            if each.corpus not in self.plan.excluded
        }


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """Instead of an order: the driver asks only which layer groups the model has."""

    policy_groups: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """An order in force on one worker, with its shard and its way to report progress.

    Attributes:
        shard: This rank's planned rows.
        on_step: Told of each step.
        on_report: Told of each step that was reported, and all that is known of it; None if nobody
            listens.
        sharded: The models that were sharded, after they had got their first weights.
    """

    order: Order
    shard: Any
    on_step: Callable[[int, Mapping[str, float]], None]
    on_report: Callable[[int, Mapping[str, float]], None] | None = None
    device: torch.device = field(default_factory=partial(torch.device, "cpu"))
    sharded: list[Any] = field(default_factory=list)


current: ContextVar[Assignment | Discovery | None] = ContextVar("govray_assignment", default=None)
