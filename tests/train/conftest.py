"""One Ray cluster for the module, and one finished run that tests read and never change."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from govray.train.driver.ray_cluster import start_ray
from govray.train.driver.trainer import from_experiment
from govray.train.inputs.experiment_config import parse_experiment
from tests.support import object_server
from tests.support.deployment import Deployment
from tests.support.tree import SCRIPTS


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A local cluster of two CPUs, as `govray train` starts it."""
    # Workers import what the scripts of docs/integrations.md import from their user's own code.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SCRIPTS), before]))
    # Jobs run the `python` of this environment.
    os.environ.update(object_server.CREDENTIALS)  # of a server that a test may start later
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ray.shutdown()  # a cluster of other tests, whose workers look for modules elsewhere
    start_ray(num_cpus=2)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A signed deployment that tests share and leave as it is."""
    return Deployment(tmp_path_factory.mktemp("deployment") / "here")


@pytest.fixture(scope="session")
def finished(cluster: None, deployment: Deployment) -> Path:
    """The folder of a run that ended undisturbed: two workers, twelve steps, attested."""
    trainer = from_experiment(parse_experiment(deployment.experiment(), where="test"))
    return Path(trainer.fit().path)
