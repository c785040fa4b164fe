"""An experiment file as the Helm chart's values have it: `chart_job`."""

from __future__ import annotations

from typing import Any

from govray.errors import UsageError
from govray.tune.experiment_cost import cost_of, parsed

CLASSES = ("low", "normal", "high")
"""The chart's classes of priority: below 0, 0, and above."""


def chart_job(text: str, *, name: str, project: str) -> dict[str, Any]:
    """What the chart is told of an experiment. What the file leaves out, the chart's values have.

    Args:
        name: Its path, as the image has it below its working directory.

    Raises:
        UsageError: It is no experiment. It is elastic: Kueue admits one number of pods.
    """
    experiment, search, source = parsed(text, name=name)
    resources = experiment.resources
    if resources.least < resources.most:
        raise UsageError(
            f"num_workers: [{resources.least}, {resources.most}] is elastic, and Kueue admits a "
            "job with one number of pods",
            where=name,
            do=f"Write one number, or send the override resources.num_workers={resources.most}",
        )
    slots = cost_of(experiment, search, source).slots
    job: dict[str, Any] = {"config": name, "project": project, "workers": slots}
    if resources.pool is not None:
        job["pool"] = resources.pool
    if resources.priority is not None:
        job["priority"] = CLASSES[1 + (resources.priority > 0) - (resources.priority < 0)]
    if resources.labels:
        job["labels"] = dict(resources.labels)
    if resources.accelerator_type is not None:
        job["acceleratorType"] = resources.accelerator_type
    return {"job": job}
