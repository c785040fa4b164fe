"""Where a job is put: on a node of its pool, and never on the head unless no other is there.

Ray puts the entrypoint of a job that asks for nothing on the head. So every job asks for something.
A task is its own work, and gets what a slot of its pool has. The driver of a run gets no resources,
which its workers need. They go to nodes of the same labels (`POOL_LABELS`).

A pool without labels is all nodes. Where only the head is up, an autoscaler may still bring others.
Jobs that shall wait for them name a pool with labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from govray.governance.submission.pool_labels import NODE_ID
from govray.platform.tasks.task_file import KINDS


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A slot of a pool: the labels and GPUs of its node, and what a task in it gets. ``memory``:
    bytes."""

    labels: Mapping[str, str] = field(default_factory=dict)
    cpus: float = 0.0
    gpus: float = 0.0
    memory: int = 0
    accelerator_type: str | None = None


def placement(kind: str, slot: Slot, *, head: str | None) -> dict[str, Any]:
    """What Ray is asked for with the entrypoint of a job of ``kind``: arguments of its client.

    Args:
        head: The id of the head; None if no other node is up.
    """
    selector = dict(slot.labels)
    if head is not None:
        selector[NODE_ID] = f"!{head}"
    asked: dict[str, Any] = {"entrypoint_label_selector": selector or None}
    if kind in KINDS:
        asked["entrypoint_num_cpus"] = slot.cpus or None
        asked["entrypoint_num_gpus"] = slot.gpus or None
        asked["entrypoint_memory"] = slot.memory or None
    return asked
