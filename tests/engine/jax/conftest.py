"""JAX is an extra. Where it is missing these tests are not collected, but in CI they fail."""

from __future__ import annotations

import os
from importlib.util import find_spec

_wanted = os.environ.get("CI") or (find_spec("jax") and find_spec("flax") and find_spec("optax"))
collect_ignore_glob = [] if _wanted else ["test_*.py"]

# Of a machine with a GPU too: the figures that tests compare are those of a CPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling is what takes time. Without LLVM's passes it takes two thirds of it.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)
