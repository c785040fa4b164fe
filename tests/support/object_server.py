"""Real servers of object stores, each a process, and stored files as a test sees them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from obstore.store import S3Store
from pyarrow import fs

from govray.storage.bucket_path import BucketPath
from govray.train.checkpoint.commit_folder import Folder
from govray.train.checkpoint.object_store import ObjectFolder
from tests.support.tree import ROOT

# moto lets everybody in; pyarrow wants to have something to say.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
    "AWS_EC2_METADATA_DISABLED": "true",
}

PAGE = 100
"""Names in one page of a listing. A thousand at S3, where a test of many pages takes a minute."""


class Process:
    """A server on a free port of this machine; what it stores ends with it."""

    def __init__(self, module: str, *words: str, **environment: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *(word.format(port=self.port) for word in words)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env=os.environ | environment,
        )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                time.sleep(0.05)

    def stop(self) -> None:
        """End it at once, as a machine does that loses its power."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Server(Process):
    """moto's S3."""

    def __init__(self) -> None:
        super().__init__("tests.support.s3_server", "{port}", MOTO_S3_DEFAULT_MAX_KEYS=str(PAGE))

    def bucket(self, name: str) -> str:
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


@dataclass(frozen=True)
class Bucket:
    """A bucket of a server, past all code of govray."""

    server: Server
    name: str

    def url(self, key: str = "") -> str:
        return self.server.url(self.name).replace("/commits", f"/{key}")

    def put(self, key: str, data: bytes) -> None:
        self._store.put(key, data)  # in one request; pyarrow takes three

    def take(self, folder: Path, prefix: str) -> None:
        """Store what a folder of the disk holds."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def delete(self, key: str) -> None:
        store, path = self._at(key)
        store.delete_file(path)

    def mark(self, key: str) -> None:
        """Store the empty object that a console shows as a folder."""
        store, path = self._at(key)
        store.create_dir(path)

    @cached_property
    def _store(self) -> S3Store:
        return S3Store(
            self.name,
            endpoint=f"http://127.0.0.1:{self.server.port}",
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def _at(self, key: str) -> tuple[Any, str]:
        store, path = fs.FileSystem.from_uri(self.url())
        return store, f"{path.rstrip('/')}/{key}"


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
        return self._object(name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        if isinstance(self.folder, Path):
            (self.folder / name).write_bytes(data)
        else:
            self._object(name).write_bytes(data)

    def delete(self, name: str) -> None:
        if isinstance(self.folder, Path):
            (self.folder / name).unlink()
        else:
            self._object(name).unlink()

    def _object(self, name: str) -> BucketPath:
        assert isinstance(self.folder, ObjectFolder)
        return self.folder.path / name
