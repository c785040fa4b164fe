"""Building an index, and keeping it: the passages of each part, then those of all in order.

`BuildParts` makes the passages: `in_turn` one part after the other here, ``parallel_index.py``
several at a time. The index has the same bytes either way. A part gives two files, for the index
alone:

* ``.entries``: of each record what its Merkle leaf is made of, 32 bytes.
* ``.rows``: its passages (``ROW``), in order. Records are counted within the part.

An index is kept in a hidden folder beside its corpus, which can always be deleted. It appears
whole (``storage/staged_folder.py``). What is not as it was written is replaced.

Memory: of each process the part's content, and 40 MB for shingles. The index itself has 100 MB, and
1.8 bytes for each passage of the directory.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from govray.data.corpus import part_files, read_part
from govray.data.similarity.minhash import PASSAGE, passage_signatures
from govray.data.similarity.passage_index import (
    MOST,
    ROW,
    CorpusPassages,
    PassageIndex,
    open_index,
    write_index,
)
from govray.data.similarity.shingles import shingles
from govray.errors import Damaged, UsageError
from govray.governance.formats import merkle
from govray.governance.policy import record_commitment
from govray.storage.place import Place
from govray.storage.staged_folder import staged_folder

_TOGETHER = 1 << 18  # bytes of text whose shingles are in memory
_AT_ONCE = 1 << 16  # passages that are copied together


@dataclass(frozen=True)
class PartPassages:
    """What was written of one part.
    ``stem``: its files' path without suffix."""

    stem: Path
    records: int
    passages: int

    def entries(self) -> bytes:
        """Of each record, 32 bytes."""
        return self.stem.with_suffix(".entries").read_bytes()

    def rows(self, first: int) -> Iterator[npt.NDArray[np.void]]:
        """The passages in pieces, where ``first`` is the number of the part's first record."""
        with self.stem.with_suffix(".rows").open("rb") as file:
            while data := file.read(ROW.itemsize * _AT_ONCE):
                rows = np.frombuffer(bytearray(data), ROW)
                rows["record"] += np.uint32(first)
                yield rows


def write_passages(part: Place, secret: bytes, stem: Path) -> PartPassages:
    """Write the passages of a part. ``stem``: where, without suffix."""
    contents = read_part(part)
    entries = b"".join(
        record_commitment.entry(hashlib.sha256(content).digest(), secret) for content in contents
    )
    stem.with_suffix(".entries").write_bytes(entries)
    passages = 0
    with stem.with_suffix(".rows").open("wb") as file:
        for first, some in _batches(contents):
            owners, signatures = passage_signatures(list(map(shingles, some)), PASSAGE)
            rows = np.empty(len(owners), ROW)
            rows["record"], rows["signature"] = owners + first, signatures
            rows.tofile(file)
            passages += len(rows)
    return PartPassages(stem, len(contents), passages)


def _batches(contents: Sequence[memoryview]) -> Iterator[tuple[int, Sequence[memoryview]]]:
    """Records of some `_TOGETHER` bytes, with the number of the first."""
    start = size = 0
    for number, content in enumerate(contents, 1):
        size += len(content)
        if size >= _TOGETHER or number == len(contents):
            yield start, contents[start:number]
            start, size = number, 0


BuildParts = Callable[[Sequence[Place], bytes, Path], Sequence[PartPassages]]
"""Gets a corpus's parts, its secret and a folder. Writes there the passages of each part."""


def in_turn(parts: Sequence[Place], secret: bytes, folder: Path) -> Sequence[PartPassages]:
    """The passages of each part, one after the other. Raises as `write_passages`."""
    return [write_passages(part, secret, folder / stem(k)) for k, part in enumerate(parts)]


def stem(part: int) -> str:
    """The name of a part's files."""
    return f"{part:06}"


def build_index(
    folder: Path, corpus: Place, root: str, secret: bytes, build_parts: BuildParts = in_turn
) -> None:
    """Write the index of a corpus into an empty folder.
    ``root``: the Merkle root that its records have to have, ``sha256:<hex>``."""
    made = folder / "parts"
    made.mkdir(mode=0o700)
    parts = build_parts(part_files(corpus), secret, made)
    if _root(parts) != root:
        raise UsageError(
            "these are not the records that the credential states",
            where=str(corpus),
            do="Restore the corpus's files, or name the corpora that the model's run read",
        )
    records = [0, *accumulate(each.records for each in parts)]
    passages = sum(each.passages for each in parts)
    if max(records[-1], passages) > MOST:
        raise UsageError(
            f"the corpus has {passages:,} passages, an index holds {MOST:,}",
            where=str(corpus),
            do="Build it as several corpora",
        )
    write_index(folder, root, [each.records for each in parts], _rows(parts, records))
    shutil.rmtree(made)


def _root(parts: Sequence[PartPassages]) -> str:
    found = merkle.BulkRoot()
    for part in parts:
        found.add_hashes(part.entries())
    return "sha256:" + found.root().hex()


def _rows(parts: Sequence[PartPassages], records: Sequence[int]) -> Iterator[npt.NDArray[np.void]]:
    for part, first in zip(parts, records, strict=False):
        yield from part.rows(first)
        part.stem.with_suffix(".rows").unlink()


FOLDER = ".govray-similarity"


def kept_folder(corpus: Place) -> Path | None:
    """Where a corpus's index is kept; None below a bucket, which is read and never written."""
    return corpus.parent / FOLDER / corpus.name if isinstance(corpus, Path) else None


def kept_index(corpus: Place, root: str) -> PassageIndex | None:
    """The index that is kept of the records with this Merkle root, if any."""
    kept = kept_folder(corpus)
    with suppress(OSError, Damaged):
        return open_index(kept, root) if kept else None
    return None


def whole_index(corpus: Place, root: str) -> PassageIndex | None:
    """As `kept_index`, with every block checked."""
    found = kept_index(corpus, root)
    with suppress(Damaged):
        if found is not None:
            found.check()
            return found
    return None


def index_of(corpus: Place, root: str, secret: bytes) -> PassageIndex:
    """The index of a corpus whose records have this Merkle root: as kept, or built and kept.
    ``root``: ``sha256:<hex>``, as its credential says."""
    return kept_index(corpus, root) or built_index(corpus, root, secret)


def built_index(
    corpus: Place, root: str, secret: bytes, build_parts: BuildParts = in_turn
) -> PassageIndex:
    """The index, built anew. It is kept, if that can be written; else it goes with the process.
    Raises as `index_of`; ``OSError`` if nothing at all can be written."""
    kept = kept_folder(corpus)
    if kept is not None:
        with suppress(OSError):
            with staged_folder(kept, replace=True) as folder:
                build_index(folder, corpus, root, secret, build_parts)
            return open_index(kept, root)
    with tempfile.TemporaryDirectory(prefix="govray-similarity-") as name:
        build_index(Path(name), corpus, root, secret, build_parts)
        return open_index(Path(name), root)  # what is mapped stays until it is let go


def passages_of(corpus: Place, root: str, secret: bytes) -> CorpusPassages:
    """All passages of a corpus, in memory. Raises as `index_of`."""
    try:
        return index_of(corpus, root, secret).passages()
    except Damaged:
        return built_index(corpus, root, secret).passages()
