"""Bands from clean corpora, and the policy's source that takes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.cli import main
from govray.errors import UsageError
from govray.governance.policy.memorization_section import Band
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.record.calibration import calibrate, into_source
from govray.governance.record.entropy_profile import EntropyProfile, Measure, Side
from tests.support.monitored_world import Monitored

SOURCE = """\
schema: govray.dev/depth-policy/v1
name: licences
version: 1
valid: {from: 2026-11-01, until: 2027-11-01}
on_expiry: stop
profiles:
  everything: {layers: all}
rules:
  - {name: open, match: {}, profile: everything}
memorization:
  every: 100          # a comment that stays
  bands: calibrated   # this one goes
  probe_rows: 32
"""


def profiles(
    *deviations: float, corpus: str = "a", statistic: str = "min_k"
) -> list[EntropyProfile]:
    side = Side(rows=4, entropy=1.0)
    return [
        EntropyProfile(
            step=step,
            statistic=statistic,  # type: ignore[arg-type]
            measures=(
                Measure(
                    corpus=corpus,
                    layer="head",
                    probe=side,
                    reserve=side,
                    deviation=deviation,
                    p=0.5,
                    permutations=9,
                ),
            ),
        )
        for step, deviation in enumerate(deviations)
    ]


@given(st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=40), st.floats(0.1, 10))
def test_a_band_is_the_median_and_k_mads_to_both_sides(values: list[float], k: float) -> None:
    [found] = calibrate([(profiles(*values), {"a"})], k=k).values()
    assert found.band.low <= found.median - k * found.mad <= found.band.low + 2e-3
    assert found.band.high >= found.median + k * found.mad >= found.band.high - 2e-3
    assert (found.measures, found.corpora) == (len(values), 1)


def test_the_source_keeps_all_but_that_line() -> None:
    text = into_source(SOURCE, {"head": Band(low=-1.5, high=2)}, where="policy.yaml")
    section = read_policy(text).memorization
    assert section is not None
    assert section.bands == {"head": Band(low=-1.5, high=2)}
    assert "a comment that stays" in text
    assert "this one goes" not in text
    with pytest.raises(UsageError, match="0 times"):
        into_source(text, {"head": Band(low=0, high=0)}, where="policy.yaml")


def test_the_command_reads_attested_runs_and_fills_the_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = Monitored(deviations=lambda corpus, branch, step: (step % 5 - 2) / 10)
    model = world.run(tmp_path / "run" / "model")
    source = tmp_path / "policy.yaml"
    source.write_text(SOURCE)
    arguments = ["policy", "calibrate", str(model.parent), "--into", str(source), "--json"]
    assert main(arguments) == 0
    # acme is confidential, so it does not count.
    assert json.loads(capsys.readouterr().out)["bands"]["head"]["corpora"] == 3
    section = read_policy(source.read_text()).memorization
    assert section is not None
    assert section.band("head") is not None
    assert -5 < section.band("head")[0] <= 0 <= section.band("head")[1] < 5
    assert main(["policy", "calibrate", str(model)]) == 0
    assert '"head": [' in capsys.readouterr().out
