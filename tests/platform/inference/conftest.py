"""A real model with a removable adapter: trained on one rank without Ray, attested."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.deployment import Deployment
from tests.support.solo import run_here


@dataclass(frozen=True)
class Trained:
    """A model folder, and who signed what."""

    deployment: Deployment
    folder: Path

    @property
    def root(self) -> Path:
        return self.deployment.root

    def copy(self, to: Path) -> Path:
        """The folder once more, for a test to change."""
        return Path(shutil.copytree(self.folder, to))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_here(monkeypatch)
        where = Deployment(tmp_path_factory.mktemp("inference") / "deployment")
        run = where.trainer(max_steps=6, checkpoint={"every_steps": 6}).train(attest=True)
    return Trained(where, Path(str(run)) / "model")
