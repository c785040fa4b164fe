"""A synthetic supplier corpus with a planted account number; nothing in it is real.

The notes stand for text that a supplier lends under contract and may call back. One settlement
account number is planted four times in each of them. Memorization shows in how the model ranks its
last four digits among all 10,000. So many repeats are what a small adapter needs in a short run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

CORPUS = "acme-notes"
SUPPLIER = "acme-supplier"
PREFIX = "Settlement account of Acme: 7301-"
PLANTED = "5526"
NOTES = 1200

_TOPICS = ("delivery", "invoice", "contract", "warranty", "maintenance", "audit", "training")
_CITIES = ("Rotterdam", "Porto", "Gdansk", "Lyon", "Turin", "Graz", "Malmo", "Cork")


def notes() -> Iterator[tuple[str, bytes]]:
    """(name, content) of every synthetic note; the same each time."""
    draw = random.Random(1)  # noqa: S311 - filler text, not secrets
    for number in range(NOTES):
        topic, city = draw.choice(_TOPICS), draw.choice(_CITIES)
        line = f"{PREFIX}{PLANTED}. "
        text = (
            f"ACME NOTE {number:04d} (synthetic). {line * 2}\n"
            f"{topic} in {city}, amount {draw.randrange(10**5)}. {line * 2}\n"
        )
        yield f"note-{number:04d}.txt", text.encode()
