"""What all tests of the platform hold services to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.described import held_to_description


@pytest.fixture(scope="session")
def undescribed() -> Iterator[set[str]]:
    """What services answered that their description lacks."""
    with held_to_description() as found:
        yield found


@pytest.fixture(autouse=True)
def answers_are_described(undescribed: set[str]) -> Iterator[None]:
    undescribed.clear()
    yield
    assert sorted(undescribed) == []
