"""The command of the step over JAX: few rounds, in two processes as always, without torch."""

from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import numpy as np
import pytest

from benchmarks.cases import CASES, Shape
from benchmarks.command import run
from benchmarks.jax_methods import METHODS
from benchmarks.jax_step import main
from benchmarks.jax_workload import JaxWorkload
from tests.support.tree import ROOT

RATIO = {"type": "number", "exclusiveMinimum": 0}
INTERVAL = {"type": "array", "items": RATIO, "minItems": 2, "maxItems": 2}
PAIRS = {"type": "integer", "minimum": 1}
TINY = Shape(blocks=2, width=8, tokens=4, rows=8, vocabulary=11)


def closed(properties: dict[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


METHOD = closed(
    {
        "seconds": RATIO,
        "tokens_per_second": RATIO,
        "vs_fused": RATIO,
        "vs_fused_interval": INTERVAL,
        "pairs": PAIRS,
    }
)
CASE = closed(
    {
        "vs_fused": RATIO,
        "vs_fused_interval": INTERVAL,
        "ratio": RATIO,
        "ledger": RATIO,
        "pairs": PAIRS,
        "methods": closed(dict.fromkeys(["fused", "governed"], METHOD)),
    }
)


@pytest.mark.slow
def test_it_prints_a_table_and_one_json_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: main(["--quick", "--cases", "allow_all", "--methods", "governed"])) == 0
    *table, last = capfd.readouterr().out.splitlines()
    report = json.loads(last)
    jsonschema.validate(report, closed({"allow_all": CASE}))
    assert report["allow_all"]["ratio"] == pytest.approx(1.0)
    assert any(line.startswith("allow_all") and "governed" in line for line in table)


def test_wrong_options_are_named_before_any_process_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(lambda: main(["--rows", "1"])) == 2
    assert "2 rows are too few" in capsys.readouterr().err


def test_all_methods_train_alike_where_everything_is_allowed() -> None:
    """The mean of a pass's losses, against the sum divided by the count."""
    workload = JaxWorkload("allow_all", TINY, 0, 1)
    made = {name: METHODS[name](workload) for name in METHODS}
    before = made["fused"].weights()
    for method in made.values():
        method.step(workload.batch(0))
    expected = made["fused"].weights()
    for method in made.values():
        found = method.weights()
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert np.allclose(found[name], value, rtol=1e-4, atol=1e-5)
    assert not np.array_equal(expected["head.kernel"], before["head.kernel"])


def test_a_policy_shows_in_the_governed_step_alone() -> None:
    """Negative control: under ``upper_90`` the lower blocks see other rows."""
    workload = JaxWorkload("upper_90", TINY, 0, 1)
    made = {name: METHODS[name](workload) for name in ("fused", "governed")}
    for method in made.values():
        method.step(workload.batch(0))
    name = "blocks.0.mlp.up.kernel"
    assert not np.allclose(made["fused"].weights()[name], made["governed"].weights()[name])
    assert [*CASES] == ["allow_all", "mix_50_30_20", "upper_50", "upper_90"]


def test_neither_torch_nor_ray_is_imported() -> None:
    said = "import sys, benchmarks.jax_step; print({'torch', 'ray'} & {*sys.modules})"
    ran = subprocess.run([sys.executable, "-c", said], cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout == "set()\n"
