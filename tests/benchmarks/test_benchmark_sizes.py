"""The benchmark of sizes runs, and its last line says what it measured."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.tree import ROOT


def test_an_append_late_in_a_run_costs_what_one_at_its_begin_does() -> None:
    """The ratio was 7 at this step when an append looked through all earlier ones."""
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.sizes", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    *table, last = ran.stdout.splitlines()
    report = json.loads(last)
    low, high = report["append_interval"]
    assert 0 < low <= report["append_ratio"] <= high
    assert report["append_ratio"] < 3
    assert "at step 20,000" in "\n".join(table)
