"""Governed runs of models that JAX trains: Flax NNX and Optax, on Ray.

`govray.jax` has the step, and nothing of torch. The run around it is that of `govray.train`: its
reader, its commits and its processes' agreement use torch's tensors on the CPU.
"""

from __future__ import annotations

from govray.train.jax.run_start import govern

__all__ = ["govern"]
