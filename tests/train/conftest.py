"""One Ray cluster for the module, and one finished run that tests read and never change."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import object_server
import pytest
import ray
from deployment import Deployment

from govray.train.driver.ray_cluster import start_ray
from govray.train.driver.trainer import from_experiment
from govray.train.inputs.experiment_config import parse_experiment


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A local cluster of two CPUs, as `govray train` starts it."""
    # Workers import the loops beside this file; jobs run the `python` of this environment.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
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
