"""What Ray Data's statistics say that was read of each credential partition."""

from __future__ import annotations

import re

_READ = re.compile(r"ReadPlanned\(([^)]+)\):.*?Output num rows per block:.*?, (\d+) total", re.S)


def counted_in(stats: str) -> dict[str, int]:
    """Corpus to the rows that Ray Data says were read of it."""
    return {corpus: int(count) for corpus, count in _READ.findall(stats)}
