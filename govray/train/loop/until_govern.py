"""Call a training loop up to `govern`, for the model that it builds.

`govern` ends that call. What stands before it in a loop should therefore build the model and
nothing else.

Routes, and so the batch plan, depend on the model's layer groups, but only the user's loop knows
the model. So the driver calls the loop once on the meta device (no memory, no arithmetic), wherever
the loop puts the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from govray.engine.startup.without_compiler import without_compiler
from govray.errors import GovrayError, UsageError
from govray.train.inputs.order import Discovery, current
from govray.train.loop.one_device import only_on
from govray.train.worker.run_start import Discovered

Loop = Callable[[dict[str, Any]], Any]


def until_govern(
    loop: Loop,
    config: dict[str, Any],
    policy_groups: Mapping[str, tuple[str, ...]],
    device: torch.device,
    *,
    where: str,
) -> Discovered:
    """The model that the loop passes to `govern`, on one device, and its layer groups.

    Args:
        device: The meta device, where a model takes no memory, or the CPU.

    Raises:
        UsageError: The loop failed before it called `govern`, or never called it.
    """
    token = current.set(Discovery(policy_groups=dict(policy_groups)))
    try:
        with only_on(device), without_compiler():
            loop(config)
    except Discovered as found:
        return found
    except GovrayError:
        raise
    except Exception as error:
        raise UsageError(
            f"the training loop failed before it called govern: {type(error).__name__}: {error}",
            where=where,
            do="Until then it runs without its worker too, on another device: only build the model",
        ) from error
    finally:
        current.reset(token)
    raise UsageError(
        "the training loop ended without calling govern(model, optimizer)",
        where=where,
        do="Call it once, where prepare_model was",
    )


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
