"""Which layer groups will the model have? Asked before any data is read.

Routes, and so the batch plan, depend on the model's layer groups, but only the
user's loop knows the model. So the loop is called once in a Ray task, on the
meta device (no memory, no arithmetic), until it reaches `govern`, which ends the
call. What stands before `govern` in a loop therefore runs once more than there
are workers; it should build the model and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ray
import torch

from govray.errors import UsageError
from govray.train.order import Discovery, current
from govray.train.worker import Discovered

Loop = Callable[[dict[str, Any]], Any]


def layer_groups_of(
    loop: Loop, config: dict[str, Any], policy_groups: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Layer group to FQNs of the model that the loop passes to `govern`.

    Raises:
        UsageError: The loop returned without calling `govern`.
        GovrayError: Whatever govray refused about the model.
    """
    task = ray.remote(num_cpus=0.1, max_retries=0)(_call)
    try:
        outcome = ray.get(task.remote(loop, config, Discovery(policy_groups=dict(policy_groups))))
    except (ray.exceptions.RayError, TypeError) as error:
        raise UsageError(
            f"the training loop could not be called on a worker: {_last_line(error)}",
            where=_name(loop),
            do="Workers need every module that the loop imports; ship them with working_dir",
        ) from error
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _call(
    loop: Loop, config: dict[str, Any], discovery: Discovery
) -> dict[str, tuple[str, ...]] | Exception:
    """Returned rather than raised, so that the driver sees the error and not Ray's wrapping."""
    token = current.set(discovery)
    try:
        with torch.device("meta"):
            loop(config)
    except Discovered as found:
        return found.groups
    except Exception as error:
        return error
    finally:
        current.reset(token)
    return UsageError(
        "the training loop ended without calling govern(model, optimizer)",
        where=_name(loop),
        do="Call it once, where prepare_model was",
    )


def _name(loop: Loop) -> str:
    return getattr(loop, "__qualname__", type(loop).__name__)


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip()
