"""One rank's rows of a step, as the engine takes them, on their way to the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from govray.data.prefetch import prefetched
from govray.data.rows import tensor_record
from govray.data.step_reader import StepRows
from govray.engine.batch import IGNORED, MicroBatch, StepBatch
from govray.governance.formats.row_schema import MASKED, TARGETS, RowSchema


def step_batch(
    rows: StepRows, device: torch.device | str = "cpu", schema: RowSchema | None = None
) -> StepBatch:
    """One rank's rows as micro-batches, one for each stream, on the model's device.

    Within a stream, rows of one corpus stand together, for that is a piece whose gradient norm is
    sampled; else they keep the plan's order.
    """
    tensors, counts = row_tensors(rows, schema)
    micro_batches = []
    for stream in dict.fromkeys(rows.streams):
        own = [i for i, name in enumerate(rows.streams) if name == stream]
        own.sort(key=rows.corpora.__getitem__)
        micro_batches.append(
            MicroBatch(
                stream=stream,
                tensors={name: each[own].to(device) for name, each in tensors.items()},
                positions=tuple(int(rows.positions[i]) for i in own),
                row_targets=tuple(counts[i] for i in own),
                corpora=tuple(rows.corpora[i] for i in own),
            )
        )
    corpora: dict[str, tuple[int, int]] = {}
    for corpus, targets in zip(rows.corpora, counts, strict=True):
        count, held = corpora.get(corpus, (0, 0))
        corpora[corpus] = (count + 1, held + targets)
    return StepBatch(
        step=rows.step,
        micro_batches=tuple(micro_batches),
        corpora=corpora,
        error=rows.error,
        refused=rows.refused,
        unreachable=rows.error is not None and not rows.refused,
    )


def row_tensors(rows: StepRows, schema: RowSchema | None) -> tuple[Mapping[str, Tensor], list[int]]:
    """The rows' tensors by name, on the CPU, and the loss targets of each row."""
    if schema is not None and schema.kind == "tensors":
        found = tensor_record.tensors(schema, rows.tokens)
        named = {name: torch.from_numpy(each.copy()) for name, each in found.items()}
        return named, [1] * len(rows.lengths)
    tokens, targets = packed(rows, masked=schema is not None)
    return {"tokens": tokens, TARGETS: targets}, (targets != IGNORED).sum(dim=1).tolist()


def packed(rows: StepRows, *, masked: bool) -> tuple[Tensor, Tensor]:
    """Inputs and targets, both ``[rows, T]`` int64, of packed rows.

    A row of k tokens gives inputs 0 … k-2 and targets 1 … k-1. A short row is padded with token 0
    and with targets that the loss ignores. So are, if ``masked``, targets with the mask's bit.
    """
    words = torch.from_numpy(rows.tokens.astype(np.int64))
    tokens = words & (MASKED - 1) if masked else words
    targets = tokens[:, 1:].clone()
    beyond = torch.arange(targets.shape[1]) >= (torch.from_numpy(rows.lengths) - 1).unsqueeze(1)
    targets[beyond] = IGNORED
    if masked:
        targets[words[:, 1:] >= MASKED] = IGNORED
    return tokens[:, :-1], targets


# Batches on their way to the device: the next step's is copied there while a step computes.
#
# A thread builds the next batch, puts it into pinned memory and queues its copy on a stream of its
# own. A copy from pinned memory keeps nobody waiting, and one on another stream passes the kernels
# that are queued. On the CPU there is nothing to copy: each batch is built when it is asked for.
#
# Invariants:
#
# * Batches come in order, each once. What went wrong with one comes in its place, not earlier.
# * The stream that computes waits for a batch's copy before the batch is handed out; the host does
#   not wait for it.
# * A batch's memory is not used again until the kernels are done that were queued with it.
#
# What is known of a step only when it begins is no concern of this module. Such are its gates: the
# run applies them to the batch that it is handed.
#
# Source: torch.cuda.Stream, Tensor.record_stream (memory that one stream allocates and another
# uses).


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
