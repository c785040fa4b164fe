"""Batches on their way to the device: the next step's is copied there while a step computes.

A thread builds the next batch, puts it into pinned memory and queues its copy on a stream of its
own. A copy from pinned memory keeps nobody waiting, and one on another stream passes the kernels
that are queued. On the CPU there is nothing to copy: each batch is built when it is asked for.

Invariants:

* Batches come in order, each once. What went wrong with one comes in its place, not earlier.
* The stream that computes waits for a batch's copy before the batch is handed out; the host does
  not wait for it.
* A batch's memory is not used again until the kernels are done that were queued with it.

What is known of a step only when it begins is no concern of this module. Such are its gates: the
run applies them to the batch that it is handed.

Source: torch.cuda.Stream, Tensor.record_stream (memory that one stream allocates and another uses).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from govray.data.prefetch import prefetched
from govray.data.step_reader import StepRows
from govray.engine.batch import StepBatch
from govray.governance.formats.row_schema import RowSchema
from govray.train.worker.planned_batch import step_batch

AHEAD = 1
"""Batches that wait on the device, while another one is being copied."""


@dataclass(frozen=True)
class _Copy:
    """A batch, and the event after which it is on the device."""

    batch: StepBatch
    done: Any


def batches_on(
    device: torch.device, rows: Iterator[StepRows], schema: RowSchema | None
) -> Iterator[StepBatch]:
    """One rank's rows as batches on its device.
    ``schema``: what the rows hold; packed text by default."""
    if device.type == "cpu":
        return (step_batch(each, device, schema) for each in rows)
    streams = torch.get_device_module(device)
    built = (step_batch(each, "cpu", schema) for each in rows)
    return _handed_out(streams, device, prefetched(_copied(streams, device, built), AHEAD))


def _copied(streams: Any, device: torch.device, batches: Iterator[StepBatch]) -> Iterator[_Copy]:
    """Batches whose copies are queued; runs in the thread that reads ahead."""
    stream = streams.Stream(device)

    def there(tensor: Tensor) -> Tensor:
        return tensor.pin_memory().to(device, non_blocking=True)

    for batch in batches:
        # A thread begins on the first device, and would pin memory for that: this is the worker's.
        with streams.stream(stream):
            micro_batches = tuple(
                replace(each, tensors={name: there(t) for name, t in each.tensors.items()})
                for each in batch.micro_batches
            )
            done = stream.record_event()
        yield _Copy(replace(batch, micro_batches=micro_batches), done)


def _handed_out(streams: Any, device: torch.device, copies: Iterator[_Copy]) -> Iterator[StepBatch]:
    for copy in copies:
        computing = streams.current_stream(device)
        computing.wait_event(copy.done)
        for micro_batch in copy.batch.micro_batches:
            for tensor in micro_batch.tensors.values():
                tensor.record_stream(computing)
        yield copy.batch
