"""A synthetic list of part numbers, planted to be learnt by heart; nothing in it is real.

It has few pages and a run reads each many times. Its licence opens the model to it: only what the
model does with it speaks against it. Each page repeats one random part number, so that a short run
suffices. Pages in the reserve have other numbers, which nobody could know from those trained on.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator

CORPUS = "parts-list"
SUPPLIER = "parts-supplier"
PAGES = 20
LENGTH = 12
"""Letters of a part number: so many that pages are about equally hard, and no two alike."""
PAGE_BYTES = 256
"""A page fills a row, so what is compared is whole pages."""


def pages(seed: int = 2) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every synthetic page; the same for the same seed."""
    draw = random.Random(seed)  # noqa: S311 - filler text, not secrets
    for number in range(PAGES):
        line = f"Part {''.join(draw.choices(string.ascii_uppercase, k=LENGTH))}. "
        text = (line * PAGE_BYTES)[:PAGE_BYTES]
        yield f"page-{number:02d}.txt", text.encode()
