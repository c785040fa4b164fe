"""One rank's rows of a step, as the engine takes them."""

from __future__ import annotations

import numpy as np
import torch

from govray.data.step_reader import StepRows
from govray.engine.batch import IGNORED, MicroBatch, StepBatch


def step_batch(rows: StepRows, device: torch.device | str = "cpu") -> StepBatch:
    """One rank's rows as micro-batches, one for each stream, on the model's device.

    Within a stream, rows of one corpus stand together, for that is a piece whose gradient norm is
    sampled; else they keep the plan's order. A row of k tokens gives inputs 0 … k-2 and targets 1 …
    k-1. A short row is padded with token 0 and with targets that the loss ignores.
    """
    tokens = torch.from_numpy(rows.tokens.astype(np.int64))
    lengths = torch.from_numpy(rows.lengths)
    targets = tokens[:, 1:].clone()
    beyond = torch.arange(targets.shape[1]) >= (lengths - 1).unsqueeze(1)
    targets[beyond] = IGNORED
    micro_batches = []
    for stream in dict.fromkeys(rows.streams):
        own = [i for i, name in enumerate(rows.streams) if name == stream]
        own.sort(key=rows.corpora.__getitem__)
        micro_batches.append(
            MicroBatch(
                stream=stream,
                tensors={
                    "tokens": tokens[own, :-1].to(device),
                    "targets": targets[own].to(device),
                },
                positions=tuple(int(rows.positions[i]) for i in own),
                row_targets=tuple(int(rows.lengths[i]) - 1 for i in own),
                corpora=tuple(rows.corpora[i] for i in own),
            )
        )
    corpora: dict[str, tuple[int, int]] = {}
    for corpus, length in zip(rows.corpora, rows.lengths.tolist(), strict=True):
        count, held = corpora.get(corpus, (0, 0))
        corpora[corpus] = (count + 1, held + length - 1)
    return StepBatch(
        step=rows.step,
        micro_batches=tuple(micro_batches),
        corpora=corpora,
        error=rows.error,
        refused=rows.error is not None,  # what a reader reports is a shard that changed or is gone
    )
