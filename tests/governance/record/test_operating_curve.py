"""The operating curve: decisions at other tolerances are those that a run under them makes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from govray.cli.policy import app
from govray.errors import Refused
from govray.governance.policy.memorization_section import Action, Monitoring
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.record.entropy_profile import EntropyProfile, Measure, MonitoredCorpus, Side
from govray.governance.record.incidents import Incidents
from govray.governance.record.operating_curve import ODDS, ObservedRun, curve, flagged_at
from govray.governance.record.rank_evidence import top_sizes
from tests.support.monitored_world import SECTION, Monitored, from_step
from tests.support.world import POLICY

SHIFTS = {"clean": 0.0, "known": 2.5, "little": 0.8}
PROFILES, ROWS = 6, 64


def section(odds: float) -> Monitoring:
    return Monitoring(every=10, probe_rows=ROWS, odds={"*": odds})


def observed(action: Action = "flag") -> ObservedRun:
    """A run under a tolerance of 1.5, which the counts don't depend on."""
    draw = np.random.default_rng(2)
    labels = np.repeat([1, 0], ROWS)

    def top(shift: float) -> tuple[int, ...]:
        best = labels[np.argsort(-(draw.normal(0, 1, 2 * ROWS) + shift * labels))].cumsum()
        return tuple(int(best[size - 1]) for size in top_sizes(2 * ROWS))

    side = Side(records=ROWS, entropy=1.0)
    profiles = [
        EntropyProfile(
            step=10 * number + 9,
            statistic="composite",
            measures=tuple(
                Measure(corpus=name, layer=layer, probe=side, reserve=side, top=top(shift))
                for name, shift in sorted(SHIFTS.items())
                for layer in ("block.0", "head")
            ),
        )
        for number in range(PROFILES)
    ]
    watched = {n: MonitoredCorpus("trunk", action, profiles=PROFILES) for n in sorted(SHIFTS)}
    return ObservedRun(section=section(1.5), subjects=watched, profiles=profiles, clean={"clean"})


@pytest.mark.parametrize("odds", [1.0, 1.5, 4.0])
def test_a_point_is_what_a_run_at_that_tolerance_decides(odds: float) -> None:
    run = observed()
    told = Incidents(section(odds), run.subjects)
    decided: dict[str, int] = {}
    for number, profile in enumerate(run.profiles, start=1):
        for each in told.take(profile):
            decided[each.corpus] = number
    assert flagged_at(run, odds) == decided


def test_a_curve_counts_false_flags_and_says_when_the_others_fall() -> None:
    points = curve([observed(), observed()], ODDS)
    assert [point.odds for point in points] == list(ODDS)
    assert {(point.clean, point.false_flags) for point in points} == {(2, 0)}
    assert all(points[0].until["known"])
    assert points[-1].until["little"] == (None, None)
    with pytest.raises(Refused, match="may gate a corpus"):
        curve([observed("gate")], ODDS)


def test_the_curve_of_a_run_and_the_chosen_odds_in_a_source(tmp_path: Path) -> None:
    flags = re.sub(r"  rollbacks.*", "", SECTION, flags=re.S)
    world = Monitored(deviations=from_step("alpha", 2)).under(POLICY + flags)
    model = world.run(tmp_path / "run")
    source = tmp_path / "policy.yaml"
    source.write_text(POLICY + flags.replace("odds: 1.5", "odds: calibrated  # see the curve"))
    call = ["calibrate", str(model), "--corpus", "beta", "--odds", "1.75"]
    done = CliRunner().invoke(app, [*call, "--into", str(source)])
    assert done.exit_code == 0, done.output
    assert "1.75" in done.output
    assert "alpha" in done.output
    assert "odds: 1.75  # see the curve" in source.read_text()
    chosen = read_policy(source.read_text()).memorization
    assert chosen is not None
    assert chosen.odds == {"*": 1.75}
    again = CliRunner().invoke(app, [*call, "--into", str(source)])
    assert "0 times on a line of its own" in str(again.exception)
    two = CliRunner().invoke(app, [*call, "--odds", "2", "--into", str(source)])
    assert "--into needs one --odds" in str(two.exception)
