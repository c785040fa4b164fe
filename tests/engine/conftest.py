"""Rank processes shared by all tests of the engine, and one thread for each kernel."""

from __future__ import annotations

import torch

from tests.support.ranks import four_ranks, two_ranks

__all__ = ["four_ranks", "two_ranks"]

torch.set_num_threads(1)
