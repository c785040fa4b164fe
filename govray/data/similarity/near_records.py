"""Near copies of a text in one corpus at hand, for a service that has no manifest beside it.

A service knows the entries of records by an index, whose keys are hashed again where a corpus is
confidential. So it cannot say an entry: it can only say whether one is right. The entry of a record
on disk is computed here, and `near` gets it only if the service confirms it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from govray.data.corpus import part_files, read_part
from govray.data.similarity.near_copies import Near, near
from govray.files.place import Place
from govray.governance.policy import record_commitment
from govray.governance.policy.credential import Records

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

    Args:
        text: What is asked about.
        corpora: The folder of corpora.
        corpus: Which of them.
        records: What its credential states of its records.
        holds: See `Holds`.

    Raises:
        UsageError: The text is too large or too short, or the corpus at hand is another one.
        Refused: Its secret is missing, or another one.
        Malformed: It cannot be read.
    """
    secret = record_commitment.read_secret(corpora / corpus, records.commitment)
    entries = _Entries(corpora / corpus, secret)

    def entry_of(_corpus: str, number: int) -> str | None:
        found = entries.of(number)
        return found if found is not None and holds(number, found) else None

    return near(
        text,
        corpora,
        {corpus: records.root},
        entry_of,
        {corpus: secret} if secret else {},
        least=LEAST_OVERLAP,
        limit=MOST,
    )


class _Entries:
    """The entries of records on disk, which are mostly asked for in ascending order."""

    def __init__(self, corpus: Place, secret: bytes | None) -> None:
        self._corpus, self._secret = corpus, secret
        self._parts: tuple[Place, ...] | None = None
        self._part = -1
        self._start = 0
        self._contents: Sequence[memoryview] = ()

    def of(self, number: int) -> str | None:
        """The entry (hex) of a record by its place in Merkle order; None: there is none."""
        if self._parts is None or number < self._start:
            self._parts, self._part = part_files(self._corpus), -1
            self._start, self._contents = 0, ()
        while number >= self._start + len(self._contents):
            if self._part + 1 >= len(self._parts):
                return None
            self._start += len(self._contents)
            self._part += 1
            self._contents = read_part(self._parts[self._part])
        digest = hashlib.sha256(self._contents[number - self._start]).digest()
        return record_commitment.entry(digest, self._secret).hex()
