"""Bands from clean corpora, and the policy's source that takes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from govray.cli import main
from govray.engine.memorization.permutation_e_value import e_values
from govray.errors import Refused, UsageError
from govray.governance.policy.memorization_section import Band
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.record.calibration import calibrate, into_source
from govray.governance.record.entropy_profile import EntropyProfile, Measure, RowValues, Side
from govray.governance.record.ledger import AnyLeaf
from tests.support.monitored_world import OBSERVING, Monitored, verified
from tests.support.world import POLICY

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


def test_only_clean_corpora_count_and_too_few_measures_make_no_band() -> None:
    dirty = profiles(*[50.0] * 9, corpus="b")
    found = calibrate([(profiles(*range(9)), {"a"}), (dirty, {"a"})])
    assert found["head"].measures == 9
    assert found["head"].band.high < 50
    for runs in ([(dirty, {"a"})], [(profiles(1.0, 2.0), {"a"})]):
        with pytest.raises(Refused):
            calibrate(runs)
    with pytest.raises(UsageError, match="min_k"):
        calibrate([(profiles(1.0), {"a"}), (profiles(1.0, statistic="entropy"), {"a"})])


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


def scored(leaves: list[AnyLeaf]) -> list[AnyLeaf]:
    """The leaves, alpha's rows known better than its reserve by ten units at every profile."""
    draw = torch.Generator().manual_seed(17)

    def measure(each: Measure) -> Measure:
        ours, theirs = torch.randn(2, each.probe.rows, 1, generator=draw, dtype=torch.float64)
        ours = ours + 10.0 * (each.corpus == "alpha")
        ends = torch.tensor([-2.0], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
        rows = RowValues(
            probe=tuple(ours.flatten().tolist()), reserve=tuple(theirs.flatten().tolist()), unit=1.0
        )
        e = float(e_values(ours, theirs, *ends))
        return each.model_copy(update={"scores": rows, "e": e})

    return [
        EntropyProfile(
            step=leaf.step,
            statistic=leaf.statistic,
            measures=tuple(measure(each) for each in leaf.measures),
        )
        if isinstance(leaf, EntropyProfile)
        else leaf
        for leaf in leaves
    ]


def test_the_command_draws_the_curve_of_runs_with_row_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = Monitored().under(POLICY + OBSERVING)
    model = world.run(tmp_path / "run" / "model", change=scored)
    source = tmp_path / "policy.yaml"
    source.write_text(SOURCE)
    clean = ["--corpus", "beta", "--corpus", "gamma"]
    chosen = ["policy", "calibrate", str(model), *clean, "--half-width", "1.5"]
    assert main([*chosen, "--into", str(source), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    by_width = {each["half_width"]: each for each in told["curve"]}
    assert {1.5, 2.0} < by_width.keys()
    assert (by_width[2.0]["false_flags"], by_width[2.0]["clean"]) == (0, 2)
    assert by_width[0.0]["profiles_until"].keys() == {"acme", "alpha"}
    # What the ledger itself recorded, at the policy's own band.
    found = verified(world, model)
    flags = {each.corpus for each in found.attestation.memorization.decisions}
    caught = {c for c, runs in by_width[2.0]["profiles_until"].items() if runs != [None]}
    assert flags == caught == {"alpha"}
    assert told["reads"]["alpha"] > 0
    section = read_policy(source.read_text()).memorization
    assert section is not None
    assert section.bands == {"*": Band(low=-1.5, high=1.5)}
    assert main(chosen) == 0
    shown = capsys.readouterr().out
    assert "Chosen: ±1.5" in shown
    assert "clean, of 2" in shown
    assert "alpha" in shown
    assert "No band flags the other 1 corpus" in shown
    for wrong in ("nan", "inf", "-1"):
        assert main(["policy", "calibrate", str(model), f"--half-width={wrong}"]) == 2
        assert "half width" in capsys.readouterr().err
