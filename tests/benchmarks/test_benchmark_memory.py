"""Peak live tensor bytes, against programs whose peak is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.memory import peak_bytes
from benchmarks.ranks import run_ranks

CPU = torch.device("cpu")
MIB = 2**20


def filled(mebibytes: int) -> torch.Tensor:
    return torch.ones(mebibytes * MIB // 4)


def test_what_lives_at_the_same_time_is_added_up() -> None:
    def prepare():
        kept = filled(1)

        def step() -> None:
            first = kept + 1  # 2 MiB live
            second = first + kept  # 3 MiB
            del first  # 2 MiB
            third = filled(4)  # 6 MiB
            del third
            second += kept

        return step

    assert peak_bytes(prepare, CPU) == 6 * MIB


def test_a_peak_before_the_step_does_not_count() -> None:
    def prepare():
        kept = filled(1)
        warm_up = filled(50)
        del warm_up
        return lambda: kept + kept

    assert peak_bytes(prepare, CPU) == 2 * MIB


def test_what_autograd_saves_counts() -> None:
    def peak(requires_grad: bool) -> int:
        def prepare():
            leaf = filled(1).requires_grad_(requires_grad)

            def step() -> None:
                value = leaf
                for _ in range(8):
                    value = value.exp()  # saves its result

            return step

        return peak_bytes(prepare, CPU)

    assert peak(False) == 3 * MIB
    assert peak(True) == 9 * MIB


def ddp_and_plain(rank: int) -> tuple[int, int]:
    """Peaks of a step that leaves its gradient, with DDP around the model and without."""

    def prepare(wrapped: bool):
        model: nn.Module = nn.Linear(512, 512, bias=False)  # 1 MiB
        if wrapped:
            model = DistributedDataParallel(model)
        rows = torch.ones(1, 512)

        def step() -> None:
            model(rows).sum().backward()

        step()
        return step

    return peak_bytes(lambda: prepare(True), CPU), peak_bytes(lambda: prepare(False), CPU)


@pytest.mark.slow
def test_buckets_that_ddp_allocates_count() -> None:
    for wrapped, plain in run_ranks(ddp_and_plain, 1, "cpu"):
        # Weights and gradient, and while it is added to, a second one.
        assert 3 * MIB <= plain < 3 * MIB + 16_384
        assert plain + MIB <= wrapped < plain + MIB + 65_536
