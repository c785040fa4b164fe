"""What a release wrote and signed, for later ones to read: ``tests/golden/<version>.zip``.

``python -m tests.support.golden_worlds`` writes that of this version. Of each kind of model it has
the folder, the trust root and the verdict. Of one run it has corpora, prepared rows and a commit:
the run was stopped on its way. Before a release the file may be written again; after it, never.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import govray
from govray.cli.verified_block import to_json
from govray.errors import Stopped
from govray.governance.formats import canonical_json
from govray.governance.formats.keys import LocalSigner
from govray.governance.verify.verifier import verify
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import Experiment, parse_experiment
from govray.train.run_folder import stop_request
from tests.conformance.vectors import KINDS
from tests.support.deployment import Deployment
from tests.support.solo import run_here
from tests.support.tree import ROOT
from tests.support.world import AT

GOLDEN = ROOT / "tests" / "golden"
STEPS, STOPPED = 6, 4
OPERATOR = LocalSigner(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
"""Signs what the stopped run comes to. No secret, so no key lies in the file."""


def verdict(model: Path, root: bytes) -> dict[str, Any]:
    """What ``govray verify --json`` says of a model, but for where it lies."""
    found = to_json(verify(model, trust_root=root, at=AT))
    return {name: value for name, value in found.items() if name != "path"}


def experiment() -> Experiment:
    """The stopped run's file. Its paths are those of its own folder, which is to be the current."""
    return parse_experiment(json.loads(Path("experiment.json").read_text()), where="golden")


def write(folder: Path) -> None:
    """Write all worlds below an empty folder."""
    for kind in KINDS:
        world, model = kind(folder / "models" / kind.__name__ / "model")
        (model.parent / "root.json").write_bytes(world.root)
        (model.parent / "verdict.json").write_bytes(
            canonical_json.encode_plain(verdict(model, world.root))
        )
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        (folder / "stopped").mkdir()
        patch.chdir(folder / "stopped")
        _stop()


def _stop() -> None:
    """A run in the current folder that was asked to stop, and did, after a commit."""
    long = timedelta(days=36500)
    made = Deployment(Path(), lifetime=long, rooted=long, generate=lambda: OPERATOR)
    value = made.experiment(
        hyperparameters={"blocks": 2, "width": 8, "context": 32},
        max_steps=STEPS,
        checkpoint={"every_steps": 2},
        resources={"num_workers": 1},
    )
    Path("experiment.json").write_text(json.dumps(value, indent=1))

    def ask(step: int, metrics: Any) -> None:
        if step == STOPPED - 2:
            [run] = Path("runs").glob("tiny-*")
            stop_request.request(run, "to go on by another version")

    with pytest.raises(Stopped):
        GovernedTrainer(experiment(), on_step=ask).train()
    made.key.unlink()


def pack(files: Iterable[tuple[str, bytes]], out: Path) -> None:
    """One archive of the worlds; its entries have no times."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        write(Path(place))
        locks = ("driver.lock", ".pins.json.lock")  # of a driver that is gone
        found = [
            path for path in Path(place).rglob("*") if path.is_file() and path.name not in locks
        ]
        GOLDEN.mkdir(exist_ok=True)
        pack(
            ((path.relative_to(place).as_posix(), path.read_bytes()) for path in found),
            GOLDEN / f"{govray.__version__}.zip",
        )
