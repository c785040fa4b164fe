"""Rank processes shared by all tests of checkpoints, and one thread for each kernel."""

from __future__ import annotations

import torch

from tests.support.ranks import two_ranks

__all__ = ["two_ranks"]

torch.set_num_threads(1)
