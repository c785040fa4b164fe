"""Find out, before any data is read, which model with which layer groups will be trained.

Routes, and so the batch plan, depend on the model's layer groups, but only the user's loop knows
the model. So the driver calls the loop once on the meta device (no memory, no arithmetic), wherever
the loop puts the model (`meta_only`). `govern` ends that call. What stands before `govern` in a
loop should therefore build the model and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from govray.errors import GovrayError, UsageError
from govray.train.driver.meta_only import meta_only
from govray.train.inputs.order import Discovery, current
from govray.train.worker.run_start import Discovered

Loop = Callable[[dict[str, Any]], Any]


def discover(
    loop: Loop,
    config: dict[str, Any],
    policy_groups: Mapping[str, tuple[str, ...]],
    where: str | None = None,
) -> Discovered:
    """The model that the loop passes to `govern`, on the meta device, and its layer groups.

    Args:
        loop: The training loop.
        config: Its argument.
        policy_groups: Layer groups that the policy names itself.
        where: What the user calls the loop; its name by default.

    Raises:
        UsageError: The loop failed before it called `govern`, or never called it.
        GovrayError: Whatever govray refused about the model.
    """
    where = where or getattr(loop, "__qualname__", type(loop).__name__)
    token = current.set(Discovery(policy_groups=dict(policy_groups)))
    try:
        with meta_only():
            loop(config)
    except Discovered as found:
        return found
    except GovrayError:
        raise
    except Exception as error:
        raise UsageError(
            f"the training loop failed before it called govern: {type(error).__name__}: {error}",
            where=where,
            do="Until then it runs on the driver too, on the meta device: only build the model",
        ) from error
    finally:
        current.reset(token)
    raise UsageError(
        "the training loop ended without calling govern(model, optimizer)",
        where=where,
        do="Call it once, where prepare_model was",
    )
