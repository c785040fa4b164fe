"""Finished runs that tests read, or copy, and never change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.deployment import Deployment
from tests.support.solo import run_here


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A signed deployment that tests share and leave as it is."""
    return Deployment(tmp_path_factory.mktemp("deployment") / "here")


@pytest.fixture(scope="session")
def finished(cluster: None, deployment: Deployment) -> Path:
    """The folder of a run that ended undisturbed: two workers, twelve steps, attested."""
    # Tests for a GPU run below this folder where there is no Ray.
    from govray.train.driver.trainer import from_experiment
    from govray.train.inputs.experiment_config import parse_experiment

    trainer = from_experiment(parse_experiment(deployment.experiment(), where="test"))
    return Path(trainer.fit().path)


@pytest.fixture(scope="session")
def alone(deployment: Deployment) -> Path:
    """The same of one worker, in this process."""
    experiment = deployment.experiment(name="alone", resources={"num_workers": 1})
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        trainer = from_experiment(parse_experiment(experiment, where="test"))
        return Path(str(trainer.train(attest=True)))
