"""A file of tensors in parts: each rank of a sharded model commits its own rows.

Rank r of w writes ``parts/<r>-of-<w>/NAME``, a safetensors file. A sharded tensor is in every part:
joined in rank order, its rows (first dimension) are those of the whole. Other tensors are in the
first part alone. ``parts.json`` names the sharded tensors with the rows of the whole. So the parts
define NAME for every reader:

* `cut` says which rows a rank holds, as torch's ``Shard(0)`` does. So a reader with any number of
  ranks knows which parts have its rows before it opens one.
* Tensors have the same order in a part as in the whole (``stored_tensors.py``). So NAME is made
  by reading and hashing each part once from start to end (``whole_file.py``). It is byte for byte
  the file that one rank would have written.

Pure: names and numbers; ``stored_tensors.py`` has the tensors. Only rows can be cut.

Why not ``torch.distributed.checkpoint``: its default writer pickles the metadata. Its
``HuggingFaceStorageWriter`` does not, but it plans each save in collectives of the training loop.
It takes no digests, and its files need other files' headers to be read.

Source: torch.distributed.tensor.placement_types.Shard (which rank holds which rows).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from govray.errors import Damaged, Malformed
from govray.governance.formats import canonical_json

INDEX = "parts.json"

_PART = re.compile(r"parts/(\d{5,9})-of-(\d{5,9})/(.+)")


def part_name(name: str, rank: int, world: int) -> str:
    """The file with a rank's part of the file ``name``."""
    return f"parts/{rank:05d}-of-{world:05d}/{name}"


def cut(rows: int, rank: int, world: int) -> range:
    """The rows that a rank holds: equal chunks, of which the last ones are short or empty."""
    chunk = -(-rows // world)
    return range(min(rows, chunk * rank), min(rows, chunk * (rank + 1)))


@dataclass(frozen=True)
class ShardIndex:
    """What ``parts.json`` says.

    Attributes:
        world: How many ranks wrote parts.
        rows: File → sharded tensor → rows of the whole. Lists all files in parts.
    """

    world: int
    rows: Mapping[str, Mapping[str, int]]

    def encode(self) -> bytes:
        rows = {name: dict(tensors) for name, tensors in self.rows.items()}
        return canonical_json.encode({"rows": rows, "world": self.world})

    @classmethod
    def parse(cls, data: bytes, where: str) -> ShardIndex:
        where = f"{where}/{INDEX}"
        try:
            value: Any = canonical_json.parse_canonical(data, where=where)
        except Malformed as error:
            raise Damaged(error.what, where=error.where, do=error.do) from error
        match value:
            case {"world": int(world), "rows": dict(rows), **rest} if not rest and _are_rows(rows):
                if type(world) is int and world > 0:
                    return cls(world, rows)
        raise Damaged("expected the fields rows and world", where=where)


def file_names(entries: Collection[str]) -> frozenset[str]:
    """The files of a commit as its readers see them: one name for all parts of a file."""
    matches = {name: _PART.fullmatch(name) for name in entries if name != INDEX}
    return frozenset(match[3] if match else name for name, match in matches.items())


def require_complete(entries: Collection[str], where: str) -> None:
    """Accept the names in a manifest if the part of no rank is missing."""
    found = [(match, name) for name in entries if (match := _PART.fullmatch(name))]
    if not found and INDEX not in entries:
        return
    worlds = {match[2] for match, _ in found}
    if len(worlds) != 1 or INDEX not in entries:
        raise Damaged(
            f"expected {INDEX} and the parts of one number of ranks",
            where=where,
            do="Resume from another checkpoint",
        )
    world = int(worlds.pop())
    files = {match[3] for match, _ in found}
    if len(found) != len(files) * world or not files.isdisjoint(entries):
        raise Damaged(
            f"{len(found)} parts, which is not one of {world} ranks for each of "
            f"{', '.join(sorted(files))}",
            where=where,
            do="Resume from another checkpoint",
        )
    for file in files:
        for rank in range(world):
            if part_name(file, rank, world) not in entries:
                raise Damaged("missing", where=f"{where}/{part_name(file, rank, world)}")


def _are_rows(value: dict[str, Any]) -> bool:
    return all(
        isinstance(tensors, dict)
        and all(type(count) is int and count >= 0 for count in tensors.values())
        for tensors in value.values()
    )
