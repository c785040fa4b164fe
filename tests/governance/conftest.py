"""One simulated deployment for the session, and its model folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.world import World


@pytest.fixture(scope="session")
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def untouched(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that verifies; tests only read it."""
    return world.deploy(tmp_path_factory.mktemp("world") / "model")


@pytest.fixture
def model(untouched: Path, tmp_path: Path) -> Path:
    """A copy of the folder, to be changed."""
    return Path(shutil.copytree(untouched, tmp_path / "model"))
