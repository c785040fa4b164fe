"""The loss over how far zlib compresses the text, so that dull texts don't look memorized.

Source: Carlini et al. 2021, "Extracting Training Data from Large Language Models".
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.membership.token_statistics import TokenStatistics


def zlib_loss(statistics: TokenStatistics, texts: Sequence[bytes]) -> Tensor:
    """The log-probability of a row for each byte that zlib needs for it: (rows,), float64.

    Args:
        statistics: Of the rows.
        texts: Each row's text.
    """
    sizes = torch.tensor([len(zlib.compress(text)) for text in texts], dtype=torch.float64)
    return statistics.log_p.sum(1) / sizes
