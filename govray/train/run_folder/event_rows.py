"""A run's event log as rows: metrics, decisions, and what the run used. Pure.

Numbers of a step belong to the attempt that was running. When an attempt begins at step s,
earlier attempts' numbers for s and later are superseded. They stay, archived.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from govray.train.run_folder import events


@dataclass(frozen=True, kw_only=True)
class MetricValue:
    """One metric of one step, as `govray.platform.store.tables.MetricRow` has it."""

    group: str
    name: str
    step: int
    attempt: int
    value: float
    archived: bool = False
    at: str | None = None


@dataclass(frozen=True, kw_only=True)
class Decided:
    """One decision, as `govray.platform.store.tables.DecisionRow` has it."""

    kind: str
    reason: str
    at: str | None = None
    step: int | None = None
    corpus: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


def numbers(log: Iterable[events.AnyEvent], attempt: int = 0) -> list[MetricValue]:
    """The metrics that the log has, or a part of it behind the start of ``attempt``."""
    found: dict[tuple[str, str, int, int], MetricValue] = {}
    for event in log:
        match event:
            case events.AttemptStarted():
                attempt = event.attempt
                for place, number in found.items():
                    if number.step >= event.step and number.attempt != attempt:
                        found[place] = replace(number, archived=True)
                continue
            case events.Progress(loss=float(loss)):
                said, group, values = attempt, "training", {"loss": loss}
            case events.Reported():
                said, group, values = event.attempt, event.group, event.values
            case _:
                continue
        for name, value in values.items():
            found[group, name, event.step, said] = MetricValue(
                group=group, name=name, step=event.step, attempt=said, value=value, at=event.at
            )
    return list(found.values())


def decisions(log: Iterable[events.AnyEvent]) -> list[Decided]:
    """The decisions that the log has: failures and what followed, stops, gates, incidents."""
    return [made for event in log if (made := _decided(event)) is not None]


def _decided(event: events.AnyEvent) -> Decided | None:
    kind: str
    step: int | None = None
    corpus: str | None = None
    match event:
        case events.Failed():
            kind, step = event.decision, event.step
        case events.StopRequested():
            kind = "stop"
        case events.Stopped():
            kind, step = "stopped", event.step
        case events.EndedEarly():
            kind, step = "ended early", event.step
        case events.Killed():
            kind = "kill"
        case events.ResizeWanted():
            kind = "resize"
        case events.Gated():
            kind, step, corpus = "gate", event.gate.step, event.gate.corpus
        case events.Memorized():
            made = event.decision
            kind, step, corpus = made.action, made.step, made.corpus
        case events.LogMatched():
            kind = "log"
        case events.OtherCode():
            kind, step = "other code", event.step
        case _:
            return None
    evidence = event.to_json()
    return Decided(
        kind=kind, reason=event.text, at=event.at, step=step, corpus=corpus, evidence=evidence
    )


def commit_times(log: Iterable[events.AnyEvent]) -> dict[tuple[int, str], str]:
    """(Step, digest) → when that checkpoint was committed."""
    return {
        (event.step, event.digest): event.at for event in log if isinstance(event, events.Committed)
    }
