"""Find out, before any data is read, which model with which layer groups will be trained.

Routes, and so the batch plan, depend on the model's layer groups, but only the user's loop knows
the model. So the driver calls the loop once on the meta device (no memory, no arithmetic), wherever
the loop puts the model (`govray.train.loop.until_govern`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from govray.train.loop.until_govern import Loop, until_govern
from govray.train.worker.run_start import Discovered


def discover(
    loop: Loop,
    config: dict[str, Any],
    policy_groups: Mapping[str, tuple[str, ...]],
    where: str | None = None,
) -> Discovered:
    """The model that the loop passes to `govern`, on the meta device, and its layer groups.

    Args:
        policy_groups: Layer groups that the policy names itself.
        where: What the user calls the loop; its name by default.

    Raises:
        UsageError: The loop failed before it called `govern`, or never called it.
    """
    called = where or str(getattr(loop, "__qualname__", type(loop).__name__))
    return until_govern(loop, config, policy_groups, torch.device("meta"), where=called)
