"""Results stand alone on standard output, whatever others print while a stage runs."""

from __future__ import annotations

import json

import pytest

from govray.cli.output import print_json
from govray.cli.progress import StageBar


def test_what_others_print_during_a_stage_is_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="a stage that fails"), StageBar("failing", 1):
        raise ValueError("a stage that fails")
    with StageBar("training", 1):
        print("(raylet) A worker died")
    print_json({"run": "r"})
    told = capsys.readouterr()
    assert json.loads(told.out) == {"run": "r"}
    assert "(raylet) A worker died" in told.err
