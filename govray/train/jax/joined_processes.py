"""Workers that are one group for torch and one for JAX; and what the driver does over JAX.

A run's commits and agreements travel over torch's process group, gradients over JAX's. Ray has a
backend for each, and a worker group takes one: this one starts both. JAX wants to be joined before
it computes anything, so it happens before the loop is called.

Ray's backend for JAX joins the processes of GPUs and TPUs. On CPUs it does so where the platform is
named, which is done here.

Source: Ray 2.60, `ray.train.v2.jax.config` (what `JaxTrainer` starts) and `ray.train.torch`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend
from ray.train.v2.jax.config import JaxConfig, _JaxBackend

from govray.errors import UsageError

PLATFORMS = "JAX_PLATFORMS"


@dataclass
class JoinedConfig(TorchConfig):
    """Ray's configuration of torch's processes, and of JAX's."""

    gpus: bool = False

    @property
    def backend_cls(self) -> type[_JoinedBackend]:
        """What Ray calls when workers start and end."""
        return _JoinedBackend


class _JoinedBackend(_TorchBackend):
    """Its configuration is a `JoinedConfig`."""

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        super().on_start(worker_group, backend_config)
        if not backend_config.gpus:
            worker_group.execute(_compute_on_cpus)
        _JaxBackend().on_start(worker_group, JaxConfig(use_gpu=True))

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        _JaxBackend().on_shutdown(worker_group, JaxConfig(use_gpu=True))
        super().on_shutdown(worker_group, backend_config)


def _compute_on_cpus() -> None:
    os.environ[PLATFORMS] = "cpu"


def refuse_unbuilt(given: Mapping[str, Any]) -> None:
    """Refuse what is built over torch alone.
    ``given``: what is asked for, by the name that people know; None or false where it is not."""
    for name, asked in given.items():
        if asked:
            raise UsageError(
                f"{name} is built over torch alone",
                where="framework: jax",
                do=f"Leave {name} out, or train with torch",
            )


@contextmanager
def cpu_platform() -> Iterator[None]:
    """Let JAX compute on the CPU, if it has not begun elsewhere; workers inherit nothing of it."""
    if "jax" in sys.modules:
        import jax

        jax.config.update("jax_platforms", "cpu")
        yield
        return
    before = os.environ.get(PLATFORMS)
    os.environ[PLATFORMS] = "cpu"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PLATFORMS]
        else:
            os.environ[PLATFORMS] = before
