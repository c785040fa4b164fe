"""Where tiles lie: a folder here, or a prefix on an object store.

Invariant: a tile is there whole or not at all. Names come from `govray.platform.store.tiles`, never
from a request's text.
"""

from __future__ import annotations

from govray.errors import InfrastructureFailed
from govray.storage.atomic_file import make_folder, write_whole
from govray.storage.place import Place, place


class TileFolder:
    """A place with files below it."""

    def __init__(self, root: Place) -> None:
        self._root = root

    def read(self, name: str) -> bytes | None:
        """The file's bytes, if it is there."""
        try:
            return (self._root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise InfrastructureFailed(f"storage cannot be read: {error}", where=name) from None

    def replace(self, name: str, data: bytes) -> None:
        """Write the file whole, in the place of one that was there. Returns when it is kept."""
        file = self._root / name
        try:
            make_folder(file.parent)
            write_whole(file, data, mode=0o644)
        except OSError as error:
            raise InfrastructureFailed(f"storage cannot be written: {error}", where=name) from None


def tile_folder(text: str) -> TileFolder:
    """The folder that a path or URL names, as `Ledger.tiles` has it."""
    return TileFolder(place(text))
