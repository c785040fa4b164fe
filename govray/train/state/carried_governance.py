"""What a commit carries of its run's governance, by content address, beside it.

A run's record has the signed bytes that it rests on: trust root, delegations, policy, credentials
and prepare manifest. Beside those are its plan and settings, and the revocation lists that it
accepted last. Every commit names them by SHA-256 in its ``state.json``, which its manifest covers.
It also names the whole tiles of its ledger; the lines behind them are its own file. The objects lie
once in the place of the commits (`govray.train.checkpoint.storage`), however many commits name
them.

Nothing here is trusted for lying beside a commit. A digest shows that bytes are those that were
committed. Whether they hold is for a trust root that came by another way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from govray.errors import Damaged, Refused
from govray.governance.formats import canonical_json
from govray.governance.record.ledger import AnyLeaf
from govray.storage.place import Place
from govray.train.checkpoint.commit_reader import CommitFolder, FileEntry, Folder
from govray.train.checkpoint.storage import SharedObjects, Storage, object_name
from govray.train.inputs.revocation_feed import KEPT
from govray.train.inputs.run_record import FILES, RECORD, SUMMARY, RunRecord, parse_record
from govray.train.run_folder.ledger_tree import LedgerFile, LedgerTile

STATE = "state.json"
LEDGER = "ledger.jsonl"
"""A commit's file of the lines behind the ledger's whole tiles: of most runs, all of them."""
CARRIED = "governance"
"""Field of ``state.json``: path in the run's folder → digest and size."""
RECORDED = tuple(f"{RECORD}/{name}" for name in FILES)

_NAME = re.compile(rf"{KEPT}/[^/\\\0]+\.dsse\.json")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def keep(
    run_folder: Place, storage: Storage, tiles: Iterable[LedgerTile] = ()
) -> dict[str, dict[str, Any]]:
    """Put what a commit names beside it, as far as it is not there yet.

    Returns:
        What ``state.json`` says in `CARRIED`.
    """
    held = _held(run_folder)
    named = {name: FileEntry(canonical_json.sha256(data), len(data)) for name, data in held.items()}
    there = storage.objects()
    shared = [(named[name], data) for name, data in held.items()]
    for entry, data in [*shared, *((tile.entry, tile.data) for tile in tiles)]:
        if there.get(object_name(entry)) != entry.size:  # or it was cut
            storage.write_object(object_name(entry), data)
    return {name: _stated(entry) for name, entry in named.items()}


def ledger_head(ledger: LedgerFile) -> dict[str, Any]:
    """What ``state.json`` says of a ledger: size, root, and its tiles beside the commit."""
    head: dict[str, Any] = {"size": ledger.size, "root": "sha256:" + ledger.root.hex()}
    if ledger.tiles:
        head["tiles"] = [_stated(tile.entry) for tile in ledger.tiles]
    return head


def rebound(
    committed: CommitFolder,
    run_folder: Place,
    storage: Storage,
    leaves: Sequence[AnyLeaf],
    **changes: Any,
) -> dict[str, Any]:
    """The files of a commit as those of another run, which has its record in its folder.

    Args:
        storage: Where its commit will lie. What that names is put there.
        leaves: The ledger that the other run begins with.
        changes: Fields of ``state.json`` that differ.
    """
    ledger = LedgerFile()
    ledger.extend(leaves)
    state: Any = canonical_json.parse_canonical(committed.files[STATE])
    state |= changes | {"ledger": ledger_head(ledger)}
    state[CARRIED] = keep(run_folder, storage, ledger.tiles)
    return {
        **committed.files,
        STATE: canonical_json.encode(state),
        LEDGER: ledger.tail,
    }


@dataclass(frozen=True)
class CarriedGovernance:
    """What one commit names beside itself; read and checked when it is asked for.

    Attributes:
        files: Path in the run's folder → digest and size.
        tiles: Of its ledger, in order.
    """

    commit: Folder
    files: Mapping[str, FileEntry]
    tiles: tuple[FileEntry, ...]

    @cached_property
    def _objects(self) -> SharedObjects:
        return SharedObjects(self.commit)

    @property
    def objects(self) -> dict[str, FileEntry]:
        """Name → entry of every object that the commit names."""
        return {object_name(entry): entry for entry in (*self.files.values(), *self.tiles)}

    def read(self, name: str) -> bytes:
        """The bytes of a file. Raises ``Damaged``: not beside the commit, or others."""
        return self._objects.read(self.files[name], name)

    def read_tiles(self) -> bytes:
        """The bytes of all tiles. Raises as `read`."""
        return b"".join(
            self._objects.read(entry, f"tile {number} of {LEDGER}")
            for number, entry in enumerate(self.tiles)
        )

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """Name and bytes of every object that the commit names. Raises as `read`."""
        described = {object_name(entry): name for name, entry in self.files.items()}
        for name, entry in self.objects.items():
            yield name, self._objects.read(entry, described.get(name, f"a tile of {LEDGER}"))

    def record(self) -> RunRecord:
        """The run's record, as it was when the commit was written."""
        if missing := sorted(set(RECORDED) - self.files.keys()):
            raise Damaged(f"the checkpoint does not carry {missing[0]}", where=str(self.commit))
        files = {name: self.read(path) for name, path in zip(FILES, RECORDED, strict=True)}
        return parse_record(files, where=str(self.commit))


def carried(committed: CommitFolder) -> CarriedGovernance:
    """What a commit names beside itself."""
    if STATE not in committed.entries:
        return CarriedGovernance(committed.folder, {}, ())
    where = f"{committed.folder}/{STATE}"
    state: Any = canonical_json.parse_canonical(committed.files[STATE], where=where)
    return stated(state, committed.folder)


def stated(state: Any, commit: Folder) -> CarriedGovernance:
    """What a commit's ``state.json`` says that it names."""
    where = f"{commit}/{STATE}"
    try:
        named: dict[str, Any] = state[CARRIED]
        files = {str(name): _entry(each, where) for name, each in named.items()}
        tiles = tuple(_entry(each, where) for each in state["ledger"].get("tiles", ()))
    except (AttributeError, KeyError, TypeError) as error:
        raise Damaged("it does not say what the checkpoint carries", where=where) from error
    if odd := [name for name in files if name not in RECORDED and not _NAME.fullmatch(name)]:
        raise Damaged(f"a checkpoint carries no {min(odd)!r}", where=where)
    return CarriedGovernance(commit, files, tiles)


def read_ledger(committed: CommitFolder) -> bytes:
    """The whole ledger of a commit: its tiles, and the lines behind them."""
    return carried(committed).read_tiles() + committed.files[LEDGER]


def refuse_other_record(run_folder: Place, found: CarriedGovernance) -> None:
    """Refuse a record that is not the one which a commit carries.
    When the run ended, which a commit cannot know, is not compared."""
    found.record()
    for name in RECORDED:
        data = (run_folder / name).read_bytes()
        if canonical_json.sha256(data) == found.files[name].digest:
            continue
        if name == f"{RECORD}/{SUMMARY}" and _begun(data) == _begun(found.read(name)):
            continue
        raise Refused(
            f"it is not the {name} that {found.commit.name} carries",
            where=f"{run_folder}/{name}",
            do="Restore it; `govray checkpoint copy` writes a run's record from a checkpoint",
        )


def _begun(summary: bytes) -> dict[str, Any]:
    """A run's summary without its end."""
    value: Any = canonical_json.parse_canonical(summary)
    return {name: each for name, each in value.items() if name not in ("finished", "ended")}


def _held(run_folder: Place) -> dict[str, bytes]:
    """What a run's folder has of its governance, by path; nothing where it has no record."""
    if not (run_folder / RECORD / SUMMARY).is_file():
        return {}
    kept: list[Place] = sorted((run_folder / KEPT).glob("*.dsse.json"), key=str)
    names = [*RECORDED, *(f"{KEPT}/{path.name}" for path in kept)]
    return {name: (run_folder / name).read_bytes() for name in names}


def _stated(entry: FileEntry) -> dict[str, Any]:
    return {"digest": entry.digest, "size": entry.size}


def _entry(value: Any, where: str) -> FileEntry:
    match value:
        case {"digest": str(digest), "size": int(size), **rest} if (
            not rest and type(size) is int and size >= 0 and _DIGEST.fullmatch(digest)
        ):
            return FileEntry(digest, size)
    raise Damaged("it does not say what the checkpoint carries", where=where)
