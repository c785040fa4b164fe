"""The families of the records that are to be packed: Ray Data's tasks read every part once for it.

A task makes the bands of a part's records, the driver joins those of a corpus into families
(``near_families.py``). What it finds goes with each part to the task that packs it. Bands and
entries lie in a temporary folder of the driver meanwhile, 160 bytes a record.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from govray.data.corpus import read_part
from govray.data.families import near_families
from govray.data.families.near_families import BANDS
from govray.data.packing import Item, PartFamilies, PartWork, Progress, run_work
from govray.errors import GovrayError, UsageError
from govray.governance.policy import record_commitment


@dataclass(frozen=True)
class _Signed:
    """What a task found in a part: its records' entries, 32 bytes each, and bands."""

    entries: bytes
    bands: bytes

    @property
    def records(self) -> int:
        return len(self.entries) // 32


class _Signing(PartWork):
    def work(self, item: Item) -> _Signed:
        secret = record_commitment.read_secret(item.source.parent, item.commitment)
        contents = read_part(item.source)
        entries = [
            record_commitment.entry(hashlib.sha256(content).digest(), secret)
            for content in contents
        ]
        return _Signed(b"".join(entries), near_families.bands(contents).tobytes())

    def failed(self, item: Item, error: Exception) -> GovrayError:
        return UsageError(
            f"cannot read a corpus ({getattr(error, 'strerror', None) or error})",
            where=str(item.source),
            do="Check the file, its permissions and the disk.",
        )


def with_families(
    items: Mapping[str, Sequence[Item]], total: int, progress: Progress
) -> dict[str, tuple[Item, ...]]:
    """The same parts, and of each the families that its records are in. Needs Ray.

    Args:
        items: Corpus → its parts, in order.
        progress: Called with (records done, ``total``).
    """
    done = 0
    progress(done, total)
    sizes: dict[tuple[str, int], int] = {}
    with tempfile.TemporaryDirectory(prefix="govray-families-") as name:
        folder = Path(name)

        def on_part(item: Item, signed: _Signed) -> None:
            nonlocal done
            path = _file(folder, item)
            path.with_suffix(".entries").write_bytes(signed.entries)
            path.with_suffix(".bands").write_bytes(signed.bands)
            sizes[item.corpus, item.part] = signed.records
            done += signed.records
            progress(done, total)

        run_work(_Signing(), [item for parts in items.values() for item in parts], on_part)
        return {
            corpus: _of_corpus(folder, parts, [sizes[corpus, item.part] for item in parts])
            for corpus, parts in items.items()
        }


def _of_corpus(folder: Path, parts: Sequence[Item], sizes: Sequence[int]) -> tuple[Item, ...]:
    """The parts of one corpus with their families."""
    starts = np.cumsum([0, *sizes])
    total = int(starts[-1])
    if not total:
        return tuple(replace(item, families=PartFamilies()) for item in parts)
    entries = np.memmap(folder / "entries", np.uint8, "w+", shape=(total, 32))
    bands = np.memmap(folder / "bands", np.uint64, "w+", shape=(BANDS, total))
    for item, start, size in zip(parts, starts, sizes, strict=False):
        at = slice(start, start + size)
        path = _file(folder, item)
        for array, suffix in ((entries[at], ".entries"), (bands[:, at], ".bands")):
            part = path.with_suffix(suffix)
            array[:] = np.frombuffer(part.read_bytes(), array.dtype).reshape(array.shape)
            part.unlink()
    last = near_families.families(bands)
    found = []
    for item, start, size in zip(parts, starts, sizes, strict=False):
        own = last[start : start + size]
        others = np.flatnonzero(own != np.arange(start, start + size))
        families = PartFamilies(others.tobytes(), entries[own[others]].tobytes())
        found.append(replace(item, families=families))
    return tuple(found)


def _file(folder: Path, item: Item) -> Path:
    """Where a part's records are kept, without suffix."""
    return folder / f"{hashlib.sha256(item.file.encode()).hexdigest()}"
