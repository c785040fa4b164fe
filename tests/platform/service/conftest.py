"""Fixtures of the service's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from govray.platform.store.database import open_store
from tests.support.databases import made_file, postgres, store_url
from tests.support.people import Service, serve
from tests.support.place import place
from tests.support.site import site

__all__ = ["made_file", "place", "postgres", "site", "store_url"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service over an empty store, with one user of every kind."""
    folder: Path = tmp_path_factory.mktemp("service")
    url = f"sqlite:///{folder / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url) as running:
        yield running
