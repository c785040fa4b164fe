"""Rank processes shared by all tests of the engine, and one thread for each kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from ranks import RankPool

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[RankPool]:
    """Two persistent rank processes."""
    pool = RankPool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[RankPool]:
    """Four persistent rank processes: gloo's sums depend on the layout only from three on."""
    pool = RankPool(4)
    yield pool
    pool.close()
