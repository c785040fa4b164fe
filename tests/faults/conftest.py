"""Schedules by seed, and the undisturbed run."""

from __future__ import annotations

import pytest

from tests.faults.fault_schedule import MAX_STEPS, Schedule
from tests.faults.harness import drive
from tests.faults.undisturbed import Reference
from tests.support.deployment import Deployment

CI_SEEDS = (13,)
"""What CI has time for; a driver is killed in `test_lifecycle.py`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--schedules", type=int, metavar="N", help="seeds 0 to N-1, not CI's few")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        given = metafunc.config.getoption("--schedules", None)
        seeds = CI_SEEDS if given is None else range(given)
        metafunc.parametrize("seed", seeds, ids=lambda seed: f"seed{seed}")


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A signed deployment that all schedules train on."""
    return Deployment(tmp_path_factory.mktemp("deployment") / "here")


@pytest.fixture(scope="session")
def reference(
    cluster: None, deployment: Deployment, tmp_path_factory: pytest.TempPathFactory
) -> Reference:
    """A run of the same experiment with no fault in its schedule, and all commits kept."""
    folder = tmp_path_factory.mktemp("undisturbed")
    outcome = drive(deployment, Schedule(-1, (), keep=MAX_STEPS), folder)
    return Reference.of(outcome.run)
