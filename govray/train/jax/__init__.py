"""Governed runs of models that JAX trains: Flax NNX and Optax, on Ray.

`govray.engine.jax` has the step, and nothing of torch. The run around it is that of `govray.train`:
its reader, its commits and its processes' agreement use torch's tensors on the CPU.

Loaded lazily: the driver of a run over torch needs no JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from govray.train.jax.run_start import govern

__all__ = ["govern"]


def __getattr__(name: str) -> Any:
    if name == "govern":
        from govray.train.jax.run_start import govern

        return govern
    raise AttributeError(f"module 'govray.train.jax' has no attribute {name!r}")
