"""A register in an empty database (a file, and PostgreSQL), and a run that has ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.attesting import Room, ended
from tests.support.databases import empty_url, postgres
from tests.support.deployment import Deployment
from tests.train.conftest import alone, deployment

__all__ = ["alone", "deployment", "empty_url", "postgres"]


@pytest.fixture
def room(alone: Path, deployment: Deployment, tmp_path: Path) -> Iterator[Room]:
    with ended(alone, deployment, tmp_path) as made:
        yield made
