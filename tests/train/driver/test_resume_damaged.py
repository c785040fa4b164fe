"""A checkpoint whose bytes changed on storage, under a real cluster: older one, same end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray.train

from govray.checkpoint import commit_folder
from govray.errors import GovrayError
from govray.governance.attestation import model_folder
from govray.governance.record.ledger import GradientNorms, Leaf, read_leaves
from govray.train.driver.trainer import from_experiment
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.run_record import read_record
from govray.train.state import snapshot
from tests.support import loops
from tests.support.deployment import Deployment

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]


def files(run: Path) -> dict[str, str]:
    """Digests of what an undisturbed run and a resumed one must have in common."""
    found = snapshot.latest(run)
    assert found is not None
    entries = commit_folder.load(found[0]).entries
    return {name: entry.digest for name, entry in entries.items() if name != snapshot.STATE}


def test_a_damaged_checkpoint_is_put_aside_and_the_run_ends_with_the_same_bytes(
    finished: Path, deployment: Deployment, tmp_path: Path
) -> None:
    """An exception on one rank at step 7 stops both; the commit of step 5 is damaged then."""

    def trainer(max_failures: int) -> Any:
        return replace(
            from_experiment(parse_experiment(deployment.experiment(), where="test")),
            train_loop_per_worker=loops.fails_once,
            train_loop_config=read_record(finished).config
            | {"fail_at": 7, "flag": str(tmp_path / "failed")},
            run_config=ray.train.RunConfig(
                name="damaged",
                storage_path=str(deployment.folder / "runs"),
                failure_config=ray.train.FailureConfig(max_failures=max_failures),
            ),
        )

    run = deployment.folder / "runs" / "damaged"
    with pytest.raises(GovrayError, match="a user's bug"):
        trainer(0).train()
    found = snapshot.latest(run)
    assert found == (run / snapshot.folder_name(5), 5)
    path = found[0] / model_folder.WEIGHTS
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    trainer(1).train()
    assert files(run) == files(finished)
    leaves = read_leaves(commit_folder.load(snapshot.latest(run)[0]).files[snapshot.LEDGER])
    assert [leaf.step for leaf in leaves if isinstance(leaf, Leaf)] == list(range(12))
    assert [leaf.step for leaf in leaves if isinstance(leaf, GradientNorms)] == [0]
    [aside] = run.glob(f"*{snapshot.CORRUPT}")
    assert aside.name.startswith(snapshot.folder_name(5))
