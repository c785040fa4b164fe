"""Passages of several parts at a time, by Ray Data's tasks; the index has the bytes of one process.

Tasks write below the folder of corpora, which all nodes share. They read the corpus's secret where
it lies, so none travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from govray.data.packing import Item, PartWork, run_work
from govray.data.similarity.index_build import PartPassages, stem, write_passages
from govray.errors import GovrayError, UsageError
from govray.governance.policy import record_commitment
from govray.storage.place import Place


@dataclass(frozen=True)
class _Indexing(PartWork):
    folder: Path

    def work(self, item: Item) -> PartPassages:
        secret = record_commitment.read_secret(item.source.parent, item.commitment)
        return write_passages(item.source, secret, self.folder / item.file)

    def failed(self, item: Item, error: Exception) -> GovrayError:
        return UsageError(
            f"cannot index a corpus ({getattr(error, 'strerror', None) or error})",
            where=str(item.source),
            do="Check the folder of corpora, which all nodes share, and its disk.",
        )


def in_parallel(parts: Sequence[Place], secret: bytes, folder: Path) -> Sequence[PartPassages]:
    """As `index_build.in_turn`, with Ray Data."""
    commitment = record_commitment.commitment(secret)
    items = [
        Item(part.parent.name, k, part.resolve(), stem(k), commitment)
        for k, part in enumerate(parts)
    ]
    found: dict[int, PartPassages] = {}

    def on_part(item: Item, passages: PartPassages) -> None:
        found[item.part] = passages

    run_work(_Indexing(folder.resolve()), items, on_part)
    return [found[k] for k in range(len(parts))]
