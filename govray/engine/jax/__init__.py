"""The governed step over JAX: models of Flax NNX, optimizers of Optax, and nothing of torch.

The policy, the plan, the counts and the step itself are those of `govray.engine.steps`.
"""

from __future__ import annotations

from govray.engine.jax.flax_framework import build_step

__all__ = ["build_step"]
