from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.ranks import RankPool


@pytest.fixture(scope="module")
def process() -> Iterator[RankPool]:
    """A process that may get a device of a kind that it keeps."""
    pool = RankPool(1)
    yield pool
    pool.close()
