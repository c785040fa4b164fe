"""Batches are copied to the device ahead, and nobody reads one before it is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from govray.data.step_reader import StepRows
from govray.engine.batch import MicroBatch, StepBatch
from govray.train.worker import planned_batch
from govray.train.worker.planned_batch import AHEAD, batches_on
from tests.support import fake_device
from tests.support.ranks import RankPool

pytestmark = pytest.mark.ranks

CPU = torch.device("cpu")
STEPS, STREAMS = 6, ("sha256:a", "sha256:b")
TENSORS = 2 * len(STREAMS)
"""Of a batch: inputs and targets of each micro-batch."""


def rows(steps: int = STEPS) -> Iterator[StepRows]:
    for step in range(steps):
        yield StepRows(
            step=step,
            tokens=np.random.default_rng(step).integers(0, 17, (4, 6)).astype(np.uint32),
            lengths=np.array([6, 5, 6, 4]),
            streams=(STREAMS[0], STREAMS[1], STREAMS[0], STREAMS[1]),
            positions=np.array([0, 0, 1, 1]),
            corpora=("one", "two", "one", "two"),
        )


def contents(batch: StepBatch) -> list[Any]:
    return [
        batch.step,
        batch.corpora,
        [
            (each.stream, each.positions, each.row_targets, each.corpora, tensors(each))
            for each in batch.micro_batches
        ],
    ]


def tensors(micro_batch: MicroBatch) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in micro_batch.tensors.items()}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def while_a_step_computes() -> None:
    device = fake_device.register()
    fake_device.copies.clear()
    batches = batches_on(device, rows(), None)
    first = next(batches)
    mine = fake_device.copies[:TENSORS]
    computing = fake_device._current_stream()
    # Nobody asks for the next one, yet it is on its way, on another stream: and no more than said.
    until(lambda: len(fake_device.copies) == TENSORS * (AHEAD + 2))
    assert len({id(each.stream) for each in fake_device.copies}) == 1
    assert computing is not mine[0].stream
    # What was handed out is waited for, and will be used where the step computes. The rest is not.
    assert all(each.work is None and each.used_on == [computing] for each in mine)
    assert all(each.work and not each.used_on for each in fake_device.copies[TENSORS:])
    found = [first, *batches]
    assert [contents(each) for each in found] == [
        contents(e) for e in batches_on(CPU, rows(), None)
    ]
    places = {t.device for each in found for m in each.micro_batches for t in m.tensors.values()}
    assert places == {device}
    assert all(each.work is None and each.used_on == [computing] for each in fake_device.copies)


def test_the_next_batch_is_copied_while_a_step_computes(process: RankPool) -> None:
    process.run(while_a_step_computes)


def unawaited() -> str:
    device = fake_device.register()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fake_device.Stream, "wait_event", lambda *_: None)
        batch = next(batches_on(device, rows(1), None))
        try:
            batch.micro_batches[0].tensors["tokens"] + 1
        except RuntimeError as error:
            return str(error)
    return "nothing failed"


def test_a_batch_that_nobody_waits_for_is_noticed(process: RankPool) -> None:
    """The control."""
    [said] = process.run(unawaited)
    assert "nobody waited for" in said


def failing() -> list[Any]:
    device = fake_device.register()
    fake_device.copies.clear()

    def broken() -> Iterator[StepRows]:
        yield from rows(3)
        raise OSError("the disk is gone")

    found: list[Any] = []
    batches = batches_on(device, broken(), None)
    try:
        for each in batches:
            found.append(each.step)
            until(lambda: len(fake_device.copies) == TENSORS * 3)  # so all was read but the error
    except OSError as error:
        found.append(str(error))
    return found


def test_what_goes_wrong_ahead_is_raised_in_its_place(process: RankPool) -> None:
    assert process.run(failing) == [[0, 1, 2, "the disk is gone"]]


def test_on_the_cpu_a_batch_is_built_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    step_batch = planned_batch.step_batch

    def noted(each: StepRows, *given: Any) -> StepBatch:
        built.append(each.step)
        return step_batch(each, *given)

    monkeypatch.setattr(planned_batch, "step_batch", noted)
    batches = batches_on(CPU, rows(), None)
    assert built == []
    assert next(batches).step == 0
    assert built == [0]


@pytest.mark.gpu
def test_copies_to_a_gpu_keep_the_host_waiting_for_nothing() -> None:
    device = torch.device("cuda", 0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = list(batches_on(device, rows(), None))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [contents(each) for each in found] == [
        contents(e) for e in batches_on(CPU, rows(), None)
    ]
