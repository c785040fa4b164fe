"""An audit by several ranks: each holds its rows of the model, and the evidence is the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch.distributed as dist

from govray.cli import main
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from tests.support.deployment import Deployment
from tests.support.ranks import RankPool
from tests.support.solo import run_here

WORDS = ["--rows", "6", "--prefix", "8", "--suffix", "8", "--controls", "1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        here = Deployment(tmp_path_factory.mktemp("ranks"))
        value = here.experiment(
            max_steps=30, checkpoint={"every_steps": 30}, resources={"num_workers": 1}
        )
        canaries = {"corpora": ["open-one"], "format": "{name} {secret}\n", "digits": 2,
                    "count": 8, "repeats": 20, "coin": 1}  # fmt: skip
        data = {**value["data"], "reserve": 0.5, "canaries": canaries}
        yield GovernedTrainer(parse_experiment({**value, "data": data}, where="test")).train()


def launched(words: list[str]) -> str:
    """What a rank prints of a command that torchrun started; its group is there already."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as said:
        patch.setattr(dist, "is_torchelastic_launched", lambda: True)
        patch.setattr(dist, "init_process_group", lambda backend: None)
        assert main(words) == 0
    return said.getvalue()


def test_ranks_come_to_the_evidence_of_one_process(
    run: Path, two_ranks: RankPool, tmp_path: Path
) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    assert main(["runs", "audit", str(run), *WORDS, "--out", str(one)]) == 0
    told = two_ranks.run(launched, ["runs", "audit", str(run), *WORDS, "--out", str(two)])
    assert [said.count("AUDITED") for said in told] == [1, 0]
    found, expected = (json.loads(each.read_text()) for each in (two, one))
    del found["made"], expected["made"]
    assert_near(found, expected)
    assert any("privacy" in each for each in found["corpora"])


def assert_near(found: object, expected: object) -> None:
    """Equal, numbers up to rounding."""
    assert type(found) is type(expected)
    if isinstance(found, dict) and isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in found:
            assert_near(found[name], expected[name])
    elif isinstance(found, list) and isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_near(one, other)
    elif isinstance(found, float):
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-3)
    else:
        assert found == expected
