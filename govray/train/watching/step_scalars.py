"""What trackers are told of one step: the step's own numbers, the streams', and the loop's."""

from __future__ import annotations

import math
from collections.abc import Mapping

from govray.engine.steps.step_result import StepResult
from govray.governance.record.batch_plan import BatchPlan

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
