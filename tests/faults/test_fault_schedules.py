"""Whatever dies, and whenever: the run ends with the bytes of the undisturbed one.

A story runs one seed. All of them: ``pytest tests/faults --stories --schedules 30``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.fault_schedule import PLACES, Schedule
from tests.faults.harness import drive
from tests.faults.sabotage import spent
from tests.faults.undisturbed import Reference, check_recovered
from tests.support.deployment import Deployment


def test_a_schedule_is_a_function_of_its_seed_and_thirty_meet_every_place() -> None:
    schedules = [Schedule.of(seed) for seed in range(30)]
    assert schedules == [Schedule.of(seed) for seed in range(30)]
    assert {(f.kind, f.moment) for s in schedules for f in s.faults} >= {*PLACES}
    assert {len(s.faults) for s in schedules} == {1, 2, 3, 4}
    assert all(Schedule.from_json(s.to_json()) == s for s in schedules)


@pytest.mark.story
def test_a_run_ends_as_if_nothing_had_happened(
    seed: int, reference: Reference, deployment: Deployment, tmp_path: Path
) -> None:
    schedule = Schedule.of(seed)
    outcome = drive(deployment, schedule, tmp_path)
    print(schedule, outcome)
    assert outcome.starts == 1 + schedule.kills_driver, outcome.errors
    assert spent(tmp_path / "faults") == {*range(len(schedule.faults))}
    check_recovered(outcome.run, reference, deployment.root)
