"""The harness can fail: with a safety taken out, a run that met a fault is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from govray.governance.attestation import model_folder
from govray.train.worker import planned_shard
from tests.faults.fault_schedule import Fault, Schedule
from tests.faults.harness import Failed, drive
from tests.faults.undisturbed import Reference, check_recovered
from tests.faults.weakened import Control, WeakenedPlanData
from tests.support.deployment import Deployment

pytestmark = pytest.mark.story

DAMAGED = Fault("flip_checkpoint", "step", 8, 0, draw=4096 << 8, file=model_folder.WEIGHTS)
KILLED = Fault("kill_worker", "step", 7, 1, draw=0)


@pytest.mark.parametrize(
    ("control", "fault", "noticed"),
    [
        ("digests", DAMAGED, f"{model_folder.WEIGHTS}.* differ from the undisturbed"),
        # The commit of step 6 may not be whole yet when the worker dies.
        ("resume_step", KILLED, "step (4 where step 3|7 where step 6) was due"),
    ],
)
def test_a_run_without_its_safety_does_not_pass(
    control: Control,
    fault: Fault,
    noticed: str,
    reference: Reference,
    deployment: Deployment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planned_shard, "PlanData", lambda order: WeakenedPlanData(order, control))
    schedule = Schedule(-2, (fault,), control=control)
    with pytest.raises((AssertionError, Failed), match=noticed):
        check_recovered(drive(deployment, schedule, tmp_path).run, reference, deployment.root)
