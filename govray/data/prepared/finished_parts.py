"""Parts that an earlier try of a preparation finished: a killed one goes on behind them.

The mark of a part holds the draft's inputs and choice, and what the manifest is to say of the part.
On a store it also holds size and tag of each object. A part counts as finished if its files are
still those. Files of a disk are read and compared by digest, objects by size and tag. Any other
part is packed anew.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from govray.data import records_file, shard_file
from govray.errors import GovrayError
from govray.governance.record.prepare_manifest import Part, ReserveShard, RowTargets
from govray.storage.bucket_path import BucketPath
from govray.storage.draft_folder import DraftFolder

Dtype: TypeAlias = np.dtype[np.unsignedinteger]


def mark(draft: DraftFolder, part: Part) -> None:
    """Say that a part's files are whole."""
    made = {
        "inputs": draft.inputs,
        "choice": draft.choice,
        "part": part.to_json(),
        "objects": _objects(draft, part),
    }
    draft.mark(_name(part.file), json.dumps(made).encode())


def read(draft: DraftFolder, file: str, dtype: Dtype) -> Part | None:
    """The part whose shard is ``file``, if it is finished; words are stored as ``dtype``."""
    if (data := draft.marked(_name(file))) is None:
        return None
    try:
        made = json.loads(data)
        if (made["inputs"], made["choice"]) != (draft.inputs, draft.choice):
            return None  # a task of an earlier draft, which was discarded, outlived it
        part = Part.from_json(made["part"], where=file)
        if isinstance(draft.folder, BucketPath):
            return part if made["objects"] == _objects(draft, part) else None
        _verify(draft, part, dtype)
    except (GovrayError, FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return part


def _name(file: str) -> str:
    return file.replace("/", "-")


def _files(part: Part) -> list[str]:
    reserve = [part.reserve.file] if part.reserve else []
    return [part.file, part.records_file, *reserve]


def _objects(draft: DraftFolder, part: Part) -> dict[str, list[int | str | None]]:
    """File to size and tag, on a store."""
    found: dict[str, list[int | str | None]] = {}
    if isinstance(draft.folder, BucketPath):
        for file in _files(part):
            status = (draft.folder / file).stat()
            found[file] = [status.st_size, status.tag.e_tag]
    return found


def _verify(draft: DraftFolder, part: Part, dtype: Dtype) -> None:
    """Read a part's files. Raises ``GovrayError`` if they are not as ``part`` says."""
    columns = records_file.read(draft.folder / part.records_file, part.records[1])
    if columns.digest != part.records_digest:
        raise ValueError("other records")
    counts = columns.row_targets
    if (None if counts is None else RowTargets.of(counts)) != part.targets:
        raise ValueError("other loss targets")
    shards: Sequence[Part | ReserveShard | None] = (part, part.reserve)
    for shard in shards:
        if shard is not None:
            file = shard_file.ShardFile(draft.folder / shard.file)
            file.verify(shard.groups_digest, shard.rows, dtype)
