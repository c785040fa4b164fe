"""The exposure benchmark: it counts whole spaces, and its quick form holds the extrapolation."""

from __future__ import annotations

import json
import math

import pytest
import torch

from benchmarks.command import run
from benchmarks.exposure import GROUPS, QUICK, Ranked, every_loss, main, summary
from govray.engine.memorization.sequence_loss import target_losses
from govray.engine.model.gpt import GPT


def test_losses_digit_by_digit_are_those_of_whole_sequences() -> None:
    torch.manual_seed(1)
    model = GPT(blocks=1, width=16, context=8, vocabulary=128)
    found = every_loss(model, "abc:", 2)
    whole = [[0, *f"abc:{number:02d}".encode()] for number in range(100)]
    losses = target_losses(model, whole, [5] * 100)
    expected = torch.stack([each.sum() for each in losses])
    assert torch.allclose(found, expected, atol=1e-5)


def test_errors_are_summed_up_by_group() -> None:
    found = summary(
        [Ranked("beyond", 10, 12), Ranked("beyond", 11, 10), Ranked("first", 13, 13)], QUICK
    )
    assert found["groups"]["beyond"] == {
        "rankings": 2,
        "mean_error": 0.5,
        "median_absolute_error": 1.5,
        "largest_absolute_error": 2,
    }
    assert found["groups"]["sampled"]["mean_error"] is None
    assert found["sampling_ranks_up_to"] == math.log2(201)


@pytest.mark.slow
def test_extrapolated_exposures_are_near_those_that_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    threads = torch.get_num_threads()
    try:
        assert run(lambda: main(["--quick", "--seeds", "1"])) == 0
    finally:
        torch.set_num_threads(threads)
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [*report["groups"]] == [*GROUPS]
    assert sum(each["rankings"] for each in report["groups"].values()) == 24
    for group in GROUPS:
        assert report["groups"][group]["rankings"]
    assert {each["seconds"] > 0 for each in report["shared_prefix"].values()} == {True}
    # Where samples can say it, to half a bit; beyond that the fit decides, and errs by some bits.
    assert report["groups"]["sampled"]["median_absolute_error"] < 0.5
    assert report["groups"]["beyond"]["median_absolute_error"] < 2
    assert report["groups"]["first"]["median_absolute_error"] < 2
