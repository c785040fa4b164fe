"""Where tiles lie: a folder here, or a prefix on an object store.

Invariant: a tile is there whole or not at all. Names come from `govray.platform.store.tiles`, never
from a request's text.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from govray.errors import InfrastructureFailed
from govray.storage.atomic_file import make_folder, write_whole

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


class TileFolder(Protocol):
    """A prefix with files below it."""

    def read(self, name: str) -> bytes | None:
        """The file's bytes; None if there is none."""

    def replace(self, name: str, data: bytes) -> None:
        """Write the file whole, in the place of one that was there."""


class LocalTileFolder:
    """A folder of this machine, or one that it has mounted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def replace(self, name: str, data: bytes) -> None:
        """Write the file, on the disk when this returns."""
        path = self._path / name
        make_folder(path.parent)
        write_whole(path, data, mode=0o644)


class RemoteTileFolder:
    """A prefix of a file system of pyarrow, such as an object store's."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path.rstrip("/")

    def read(self, name: str) -> bytes | None:
        try:
            with self._filesystem.open_input_file(f"{self._path}/{name}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InfrastructureFailed(f"storage cannot be read: {error}", where=name) from None

    def replace(self, name: str, data: bytes) -> None:
        """Put the object, which appears when it is whole."""
        path = f"{self._path}/{name}"
        try:
            self._filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            with self._filesystem.open_output_stream(path) as file:
                file.write(data)
        except OSError as error:
            raise InfrastructureFailed(f"storage cannot be written: {error}", where=name) from None


def tile_folder(place: str) -> TileFolder:
    """The folder that a path or URL names, as `Ledger.tiles` has it."""
    if "://" not in place:
        return LocalTileFolder(Path(place))
    from pyarrow.fs import FileSystem

    filesystem, path = FileSystem.from_uri(place)
    return RemoteTileFolder(filesystem, path)
