"""The harness can fail: with a safety taken out, a run that met a fault is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from govray.governance.attestation import model_folder
from govray.train.worker import planned_shard
from tests.faults.fault_schedule import Fault, Schedule
from tests.faults.harness import Failed, drive
from tests.faults.undisturbed import Reference, check_recovered
from tests.faults.weakened import WeakenedPlanData
from tests.support.deployment import Deployment

pytestmark = pytest.mark.story

DAMAGED = Fault("flip_checkpoint", "step", 8, 0, draw=4096 << 8, file=model_folder.WEIGHTS)


def test_a_run_that_compares_no_digests_does_not_pass(
    reference: Reference,
    deployment: Deployment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planned_shard, "PlanData", WeakenedPlanData)
    schedule = Schedule(-2, (DAMAGED,), weakened=True)
    with pytest.raises(
        (AssertionError, Failed), match=f"{model_folder.WEIGHTS}.* differ from the undisturbed"
    ):
        check_recovered(drive(deployment, schedule, tmp_path).run, reference, deployment.root)
