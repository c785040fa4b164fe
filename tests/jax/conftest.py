"""JAX is an extra. Where it is not installed these tests are not collected."""

from __future__ import annotations

import os
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("jax") and find_spec("flax") else ["test_*.py"]

# Of a machine with a GPU too: the figures that tests compare are those of a CPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling is what takes time. Without LLVM's passes it takes two thirds of it.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)
