"""Where indexes are kept: in a hidden folder beside their corpora, which can always be deleted.

An index appears whole (``storage/staged_folder.py``). What is not as it was written is replaced.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from govray.data.similarity.index_build import BuildParts, build_index, in_turn
from govray.data.similarity.passage_index import CorpusPassages, PassageIndex, open_index
from govray.errors import Damaged
from govray.storage.place import Place
from govray.storage.staged_folder import staged_folder

FOLDER = ".govray-similarity"


def kept_folder(corpus: Place) -> Path | None:
    """Where a corpus's index is kept; None below a bucket, which is read and never written."""
    return corpus.parent / FOLDER / corpus.name if isinstance(corpus, Path) else None


def kept_index(corpus: Place, root: str) -> PassageIndex | None:
    """The index that is kept of the records with this Merkle root; None if there is none."""
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
