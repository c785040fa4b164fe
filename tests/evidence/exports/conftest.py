"""Two models: one of which little is stated, one of which everything is; and the facts of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from govray.evidence.exports.verified_facts import VerifiedFacts
from tests.support.stated_world import Stated
from tests.support.world import World


@pytest.fixture(scope="package")
def world() -> World:
    return World()


@pytest.fixture(scope="package")
def untouched(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that verifies; tests only read it."""
    return world.deploy(tmp_path_factory.mktemp("world") / "model")


@pytest.fixture(scope="package")
def stated_world() -> Stated:
    return Stated()


@pytest.fixture(scope="package")
def stated_model(stated_world: Stated, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stated_world.model(tmp_path_factory.mktemp("stated") / "model")


@pytest.fixture(scope="package")
def facts(world: World, untouched: Path) -> VerifiedFacts:
    return VerifiedFacts.of(world.verify(untouched))


@pytest.fixture(scope="package")
def stated(stated_world: Stated, stated_model: Path) -> VerifiedFacts:
    return VerifiedFacts.of(stated_world.verify(stated_model))
