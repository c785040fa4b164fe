"""The reading benchmark runs, and its last line says what it measured."""

from __future__ import annotations

import json

import jsonschema
import pytest

from benchmarks import reading

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


STORED = ["pyarrow", "governed_local", "governed_ray", "iter_torch_batches", "governed_ranges"]
REPORT = closed(
    {
        "disk": table(
            [
                "pyarrow",
                "pyarrow_plan",
                "governed_local",
                "governed_whole",
                "governed_ray",
                "iter_torch_batches",
            ],
            ["mb_per_s", "rows_per_second"],
            ["pyarrow", "pyarrow_plan", "iter_torch_batches"],
        ),
        "object_store": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                name: closed(
                    dict.fromkeys(["mb_per_s", "rows_per_second"], POSITIVE)
                    | (
                        {}
                        if name == "governed_ranges"
                        else {
                            f"vs_{reference}{suffix}": kind
                            for reference in ["pyarrow", "iter_torch_batches"]
                            for suffix, kind in [("", POSITIVE), ("_interval", INTERVAL)]
                        }
                    )
                )
                for name in STORED
            },
            "required": STORED,
        },
        "decodings": closed({"disk": closed({"1": POSITIVE, "4": POSITIVE})}),
        "hashing": table(
            ["sha256sum", "file_digest", "admission_check", "corpus_build", "dsse_sign"],
            ["mb_per_s"],
            ["sha256sum"],
        ),
        "pairs": {"const": 1},
    }
)


@pytest.mark.slow
def test_reading_prints_tables_and_one_json_line(
    cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    reading.main(["--quick", "--pairs", "1"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    jsonschema.validate(report, REPORT)
    assert report["disk"]["pyarrow"]["vs_pyarrow"] == 1.0
    assert report["hashing"]["sha256sum"]["vs_sha256sum"] == 1.0
