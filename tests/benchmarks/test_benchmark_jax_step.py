"""The command of the step over JAX: few rounds, in two processes as always, without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import jsonschema
import numpy as np
import pytest

from benchmarks.cases import Shape
from benchmarks.command import run
from benchmarks.jax_methods import METHODS
from benchmarks.jax_step import main
from benchmarks.jax_workload import JaxWorkload
from tests.support.tree import ROOT

# Compiling is what takes time. Without LLVM's passes it takes two thirds of it.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)

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
    for method in made.values():
        method.step(workload.batch(0))
    expected = made["fused"].weights()
    for method in made.values():
        found = method.weights()
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert np.allclose(found[name], value, rtol=1e-4, atol=1e-5)
    made["fused"].step(workload.batch(1))  # negative control: other rows, other weights
    name = "head.kernel"
    assert not np.allclose(made["fused"].weights()[name], expected[name], rtol=1e-4, atol=1e-5)


def test_neither_torch_nor_ray_is_imported() -> None:
    said = "import sys, benchmarks.jax_step; print({'torch', 'ray'} & {*sys.modules})"
    ran = subprocess.run([sys.executable, "-c", said], cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout == "set()\n"
