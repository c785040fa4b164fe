"""Finished runs that tests read, or copy, and never change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.deployment import Deployment

if TYPE_CHECKING:
    from govray.train.driver.trainer import GovernedTrainer


def trainer_of(experiment: dict[str, Any]) -> GovernedTrainer:
    from govray.train.driver.trainer import GovernedTrainer
    from govray.train.inputs.experiment_config import parse_experiment

    return GovernedTrainer(parse_experiment(experiment, where="test"))


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A signed deployment that tests share and leave as it is."""
    return Deployment(tmp_path_factory.mktemp("deployment") / "here")


@pytest.fixture(scope="session")
def finished(cluster: None, deployment: Deployment) -> Path:
    """The folder of a run that ended undisturbed: two workers, twelve steps, attested."""
    return Path(trainer_of(deployment.experiment()).fit().path)


@pytest.fixture(scope="session")
def alone(deployment: Deployment) -> Path:
    """The same of one worker, in this process."""
    from tests.support.solo import run_here

    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        run = deployment.experiment(name="alone", resources={"num_workers": 1})
        return Path(str(trainer_of(run).train(attest=True)))
