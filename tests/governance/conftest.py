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
    """A model folder that verifies at each depth; tests only read it."""
    folder = world.deploy(tmp_path_factory.mktemp("world") / "model")
    assert world.verify(folder).depth == "full"
    assert world.verify(folder, records=None).depth == "summary"
    return folder


@pytest.fixture
def model(untouched: Path, tmp_path: Path) -> Path:
    """A copy of the folder, to be changed."""
    return Path(shutil.copytree(untouched, tmp_path / "model"))
