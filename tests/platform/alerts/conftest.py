"""Fixtures of the tests of alerts: a store and a receiver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.databases import made_file, postgres, store, store_url
from tests.support.receiver import Receiver, receiving

__all__ = ["made_file", "postgres", "store", "store_url"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running
