"""Workers that are one group for torch and one for JAX.

A run's commits and agreements travel over torch's process group, gradients over JAX's. Ray has a
backend for each, and a worker group takes one: this one starts both. JAX wants to be joined before
it computes anything, so it happens before the loop is called.

Ray's backend for JAX joins the processes of GPUs and TPUs. On CPUs it does so where the platform is
named, which is done here.

Source: Ray 2.60, `ray.train.v2.jax.config` (what `JaxTrainer` starts) and `ray.train.torch`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend
from ray.train.v2.jax.config import JaxConfig, _JaxBackend

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
