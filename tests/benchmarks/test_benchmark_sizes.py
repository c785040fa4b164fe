"""The benchmark of sizes runs, and its last line says what it measured."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.tree import ROOT


@pytest.mark.slow
def test_it_prints_a_table_and_one_json_line() -> None:
    """The ratio was 7 at this step when an append looked through all earlier ones."""
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.sizes", "--quick", "--runs", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert ran.returncode == 0, ran.stderr
    *table, last = ran.stdout.splitlines()
    report = json.loads(last)
    low, high = report["append_interval"]
    assert 0 < low <= report["append_ratio"] <= high
    assert report["append_ratio"] < 3
    assert "at step 20,000" in "\n".join(table)
    for phase in ("plan", "attest", "summary", "sample", "full", "trace"):
        cost = report["1e3"][phase]
        assert cost["seconds"] > 0
        # The process holds at least the interpreter, and each figure is its own.
        assert 0.01 < cost["peak_gib"] < 2
        assert cost["us_per_row"] == pytest.approx(cost["seconds"] * 1e6 / 1000, rel=0.05)
    for phase in ("build", "prepare", "by_family"):
        cost = report["1e3"][phase]
        assert cost["us_per_record"] == pytest.approx(cost["seconds"] * 1e6 / 1000)
        assert 0.01 < cost["peak_gib"] < 2
    assert "computed" in ran.stdout
