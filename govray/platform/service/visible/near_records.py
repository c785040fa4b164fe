"""What finds near copies in corpora at hand, and who says so.

Records are read by the layer that wrote them, which the service does not import. The application's
maker gives it `govray.data.similarity.near_copies`, which reads them. Without it no near copies are
looked for, and each answer says that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from govray.governance.policy.credential import Records
from govray.storage.place import Place


class NearRecord(Protocol):
    """A record that shares sequences of letters with a text, as `near_records` finds them."""

    @property
    def record(self) -> int:
        """Its place in Merkle order."""

    @property
    def sha256(self) -> str:
        """Of its content, in hex."""

    @property
    def jaccard(self) -> float:
        """Common sequences among all."""

    @property
    def overlap(self) -> float:
        """Common sequences among those of the shorter text."""


NearSearch = Callable[
    [bytes, Place, str, Records, Callable[[int, str], bool]], Sequence[NearRecord]
]
"""Text, folder of corpora, corpus, what its credential states of its records, and whether the index
has an entry at a place. Raises `GovrayError` where that corpus cannot be looked through."""

LEAST_OVERLAP = 0.5
"""What `NearSearch` finds at least, as answers say it; a test compares it with the function's."""
