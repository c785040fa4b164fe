"""Finished runs that tests read, or copy, and never change; and a deployment to train in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.deployment import Deployment


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A signed deployment that tests share and leave as it is."""
    return Deployment(tmp_path_factory.mktemp("deployment") / "here")


@pytest.fixture(scope="session")
def finished(cluster: None, deployment: Deployment) -> Path:
    """The folder of a run that ended undisturbed: two workers, twelve steps, attested."""
    trainer = deployment.trainer(resources={"num_workers": 2, "cpus_per_worker": 0.5})
    return Path(trainer.fit().path)


@pytest.fixture(scope="session")
def alone(deployment: Deployment) -> Path:
    """The same of one worker, in this process."""
    from tests.support.solo import run_here

    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        return Path(str(deployment.trainer(name="alone").train(attest=True)))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment of the test's own, whose runs train in this process."""
    from tests.support.solo import run_here

    run_here(monkeypatch)
    return Deployment(tmp_path / "here")
