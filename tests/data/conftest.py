"""Shelves of corpora."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.shelf import Shelf


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)
