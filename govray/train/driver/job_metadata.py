"""What Ray's dashboard shows with the job that trains, whoever submitted it.

The queue gives its jobs their metadata. A job by hand has none but what its submitter wrote. So
each run's driver adds what it knows: run, experiment and policy, and the run's page where
``GOVRAY_SERVER`` names the service. What the job has already stays.

Ray has no call for that. Source: `JobInfoStorageClient` of Ray 2.60, whose document is changed
here; a test compares this with the installed Ray.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from urllib.parse import quote

from ray._private.ray_constants import KV_NAMESPACE_JOB
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

from govray.train.inputs.operator_key import JOB_CONFIG

SERVICE = "GOVRAY_SERVER"
"""Variable with the URL of the service whose pages show the run."""

EXPERIMENT = "govray.experiment"

_KEY = "_ray_internal_job_info_{}"


def run_metadata(run: str, experiment: str, policy: str) -> dict[str, str]:
    """What a run adds; ``policy`` is a digest."""
    found = {"govray.run": run, "govray.policy": policy, EXPERIMENT: experiment}
    if service := os.environ.get(SERVICE):
        found["govray.page"] = f"{service.rstrip('/')}/runs/{quote(run)}"
    return found


def add_metadata(more: Mapping[str, str]) -> None:
    """Add to the metadata of the job that this process drives, if it was submitted as one."""
    config = json.loads(os.environ.get(JOB_CONFIG, "{}"))
    key = _KEY.format(config.get("metadata", {}).get("job_submission_id", "")).encode()
    # The job's supervisor writes before its driver begins and after it has ended.
    if "metadata" in config and (data := _internal_kv_get(key, namespace=KV_NAMESPACE_JOB)):
        job = json.loads(data)
        job["metadata"] = {**more, **(job.get("metadata") or {})}
        _internal_kv_put(key, json.dumps(job).encode(), namespace=KV_NAMESPACE_JOB)
