"""The labels of a pool's nodes, as the queue hands them to a job for its workers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

POOL_LABELS = "GOVRAY_POOL_LABELS"
"""The variable, which holds a JSON object of Ray's labels."""
NODE_ID = "ray.io/node-id"
"""Ray's own label of each node."""


def node_labels(stated: Mapping[str, str]) -> dict[str, str]:
    """The labels that each worker's node has to have: those ``stated`` by the experiment, and those
    of the pool, which come first."""
    pool: dict[str, str] = json.loads(os.environ.get(POOL_LABELS, "{}"))
    return {**stated, **pool}
