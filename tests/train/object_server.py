"""A real S3 server in a process of its own, and stored files as a test sees them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import fs

from govray.engine.checkpoint import Folder
from govray.train.object_store import ObjectFolder, ObjectStore

# moto lets everybody in; pyarrow wants to have something to say.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Server:
    """moto's server; what it stores ends with it."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                time.sleep(0.05)

    def bucket(self, name: str) -> str:
        """The URL of a new bucket."""
        _, _, options = self.url(name).partition("?")
        maker, _ = fs.FileSystem.from_uri(f"s3://{name}?{options}&allow_bucket_creation=true")
        maker.create_dir(name)
        return self.url(name)

    def url(self, name: str) -> str:
        """The URL of a bucket, which may not exist."""
        return (
            f"s3://{name}/commits?endpoint_override=127.0.0.1:{self.port}"
            "&scheme=http&region=us-east-1"
        )

    def stop(self) -> None:
        """End it at once, as a machine does that loses its power."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def start() -> Server:
    """Start a server, and let this process and its children in."""
    os.environ.update(CREDENTIALS)
    return Server()


@dataclass(frozen=True)
class Raw:
    """The files of one commit, past all rules."""

    folder: Folder

    def read(self, name: str) -> bytes:
        if isinstance(self.folder, Path):
            return (self.folder / name).read_bytes()
        store, path = self._object(name)
        with store.filesystem.open_input_stream(path) as stream:
            return bytes(stream.read())

    def write(self, name: str, data: bytes) -> None:
        if isinstance(self.folder, Path):
            (self.folder / name).write_bytes(data)
            return
        store, path = self._object(name)
        with store.filesystem.open_output_stream(path, compression=None) as stream:
            stream.write(data)

    def delete(self, name: str) -> None:
        if isinstance(self.folder, Path):
            (self.folder / name).unlink()
            return
        store, path = self._object(name)
        store.filesystem.delete_file(path)

    def delete_all(self) -> None:
        if isinstance(self.folder, Path):
            shutil.rmtree(self.folder)
        else:
            self.folder.remove()

    def _object(self, name: str) -> tuple[ObjectStore, str]:
        assert isinstance(self.folder, ObjectFolder)
        store: Any = self.folder._store
        return store, f"{store.root}/{self.folder.folder}/{name}"
