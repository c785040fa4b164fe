"""Near copies of a text in one corpus at hand, for a service that has no manifest beside it.

A service knows the entries of records by an index, whose keys are hashed again where a corpus is
confidential. So it cannot say an entry: it can only say whether one is right.
"""

from __future__ import annotations

from collections.abc import Callable

from govray.data.similarity.near_copies import Near, near
from govray.governance.policy import record_commitment
from govray.governance.policy.credential import Records
from govray.storage.place import Place

LEAST_OVERLAP = 0.5
"""Share of the shorter text's sequences of five words from which on a record is a near copy."""
MOST = 100
"""Near copies of one corpus."""

Holds = Callable[[int, str], bool]
"""Whether the index has this entry (hex) at this place of the corpus, in Merkle order."""


def near_records(
    text: bytes, corpora: Place, corpus: str, records: Records, holds: Holds
) -> list[Near]:
    """The records of a corpus that share most with a text, the most similar first.

    Raises:
        UsageError: The text is too large or too short, or the corpus at hand is another one.
        Refused: Its secret is missing, or another one.
    """
    secret = record_commitment.read_secret(corpora / corpus, records.commitment)
    return near(
        text,
        corpora,
        {corpus: records.root},
        lambda _, number, entry: holds(number, entry),
        {corpus: secret},
        least=LEAST_OVERLAP,
        limit=MOST,
    )
