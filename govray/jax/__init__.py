"""The governed step over JAX: models of Flax NNX, optimizers of Optax, and nothing of torch.

The policy, the plan, the counts and the ledger's leaf are those of `govray.steps`, as for torch.
"""

from __future__ import annotations

from govray.jax.step import FlaxStep, build_step

__all__ = ["FlaxStep", "build_step"]
