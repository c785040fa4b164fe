"""One rank's rows of a step, as the engine takes them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

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
