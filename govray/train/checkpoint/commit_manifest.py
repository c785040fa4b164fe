"""The manifest of a commit: name → SHA-256 and size of every file, in canonical JSON.

Pure: values and bytes in, values and bytes out. ``commit_folder.py`` and ``object_store.py`` store
it.

Source: RFC 8785 for the encoding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from govray.errors import Damaged, Malformed, UsageError
from govray.governance.formats import canonical_json
from govray.train.checkpoint.pins import MANIFEST as MANIFEST

SCHEMA = "govray.dev/checkpoint/v1"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class FileEntry:
    """One file's entry: its digest, ``sha256:<hex>``, and its size in bytes."""

    digest: str
    size: int


def encode(entries: Mapping[str, FileEntry]) -> bytes:
    """The manifest's bytes: equal for equal entries, in any order."""
    return canonical_json.encode(
        {
            "schema": SCHEMA,
            "files": {
                name: {"digest": entry.digest, "size": entry.size}
                for name, entry in entries.items()
            },
        }
    )


def parse(manifest: bytes, where: str) -> dict[str, FileEntry]:
    """Name → entry of a manifest, strictly parsed."""
    where = f"{where}/{MANIFEST}"
    try:
        value: Any = canonical_json.parse_canonical(manifest, where=where)
    except Malformed as error:
        raise Damaged(error.what, where=error.where, do=error.do) from error
    if not isinstance(value, dict) or value.keys() != {"schema", "files"}:
        raise Damaged("expected the fields schema and files", where=where)
    if value["schema"] != SCHEMA or not isinstance(value["files"], dict):
        raise Damaged(f"not a {SCHEMA} manifest", where=where)
    entries: dict[str, FileEntry] = {}
    for name, entry in value["files"].items():
        match entry:
            case {"digest": str(digest), "size": int(size), **rest} if (
                not rest
                and type(size) is int
                and size >= 0
                and _is_inside(name)
                and _DIGEST.fullmatch(digest)
            ):
                entries[name] = FileEntry(digest, size)
            case _:
                raise Damaged(f"the entry of {name!r} is malformed", where=where)
    return entries


def require_whole(entries: Mapping[str, FileEntry], sizes: Mapping[str, int], where: str) -> None:
    """Compare what a manifest names with the files beside it.
    ``sizes``: name → bytes of every file that is there, the manifest left out."""
    if odd := entries.keys() ^ sizes.keys():
        raise Damaged(
            "missing" if min(odd) in entries else f"not in {MANIFEST}",
            where=f"{where}/{min(odd)}",
            do="Resume from another checkpoint",
        )
    for name, entry in entries.items():
        if sizes[name] != entry.size:
            raise Damaged(
                f"has {sizes[name]} bytes, {MANIFEST} says {entry.size}", where=f"{where}/{name}"
            )


def require_inside(name: str, where: str) -> None:
    """Accept a plain relative path that is not the manifest's own."""
    if not _is_inside(name):
        raise UsageError(f"{name!r} is no path inside the checkpoint", where=where)


def _is_inside(name: str) -> bool:
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") for part in parts)
    return plain and name != MANIFEST and not set(name) & {"\\", "\0"}
