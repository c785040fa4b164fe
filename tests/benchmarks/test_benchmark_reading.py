"""The reading benchmark runs, and its last line says what it measured."""

from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import pytest

from tests.support.tree import ROOT

POSITIVE = {"type": "number", "exclusiveMinimum": 0}
INTERVAL = {"type": "array", "items": POSITIVE, "minItems": 2, "maxItems": 2}


def table(methods: list[str], fields: list[str], references: list[str]) -> dict[str, object]:
    row = dict.fromkeys(fields, POSITIVE)
    for reference in references:
        row |= {f"vs_{reference}": POSITIVE, f"vs_{reference}_interval": INTERVAL}
    return closed(dict.fromkeys(methods, closed(row)))


def closed(properties: dict[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


REPORT = closed(
    {
        "readers": table(
            ["pyarrow", "pyarrow_plan", "governed_local", "governed_ray", "iter_torch_batches"],
            ["mb_per_s", "rows_per_s"],
            ["pyarrow", "pyarrow_plan"],
        ),
        "hashing": table(
            ["sha256sum", "file_digest", "admission_check", "corpus_build", "dsse_sign"],
            ["mb_per_s"],
            ["sha256sum"],
        ),
        "pairs": {"const": 1},
    }
)


@pytest.mark.slow
def test_reading_prints_tables_and_one_json_line() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.reading", "--quick", "--pairs", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout.splitlines()[-1])
    jsonschema.validate(report, REPORT)
    assert report["readers"]["pyarrow"]["vs_pyarrow"] == 1.0
    assert report["hashing"]["sha256sum"]["vs_sha256sum"] == 1.0
    assert "Traceback" not in ran.stderr
