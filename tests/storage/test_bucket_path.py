"""Paths below a bucket against pathlib's, on a real server of S3; conditional writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from govray.storage.atomic_file import write_whole
from govray.storage.bucket import Replaced
from govray.storage.bucket_path import BucketPath, Tag
from govray.storage.place import Place
from tests.support.object_server import Server
from tests.support.table import each_row

FILES = {
    "run/record/run.json": b"{}",
    "run/events.jsonl": b"one\ntwo\n",
    "run/empty": b"",
    "other/record/run.json": b"{}",
    ".hidden/record/run.json": b"{}",
    "file": bytes(range(256)) * 40,
}


@pytest.fixture
def both(store: BucketPath, tmp_path: Path) -> tuple[BucketPath, Path]:
    for name, data in FILES.items():
        (store / name).write_bytes(data)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return store, tmp_path


def names(found: Iterator[Place], above: Place) -> list[str]:
    return sorted(str(each.relative_to(above)) for each in found)  # type: ignore[arg-type]


@each_row("pattern", ["*", "[!.]*/record/run.json", "run/*", "nothing/*", "r*/e*"])
def test_a_pattern_finds_what_pathlib_finds(both: tuple[BucketPath, Path], pattern: str) -> None:
    store, disk = both
    assert names(store.glob(pattern), store) == names(disk.glob(pattern), disk)


@each_row("name", [*FILES, "run", "run/record", "absent", "run/record/absent"])
def test_what_is_there_is_what_pathlib_says(both: tuple[BucketPath, Path], name: str) -> None:
    store, disk = (each / name for each in both)
    assert (store.exists(), store.is_file(), store.is_dir()) == (
        *(disk.exists(), disk.is_file(), disk.is_dir()),
    )
    assert (store.name, store.parent.name) == (
        disk.name,
        disk.parent.name if "/" in name else "here",
    )
    if disk.is_file():
        assert store.read_bytes() == disk.read_bytes()
        assert store.stat().st_size == disk.stat().st_size
        with store.open() as one, disk.open("rb") as two:
            one.seek(100), two.seek(100)
            assert one.read() == two.read()
    else:
        with pytest.raises(FileNotFoundError):
            store.read_bytes()
        with pytest.raises(FileNotFoundError):
            store.stat()
    if disk.is_dir():
        assert names(store.iterdir(), store) == names(disk.iterdir(), disk)
        below = (path for path in disk.rglob("*") if path.is_file())
        assert list(store.walk_files()) == names(below, disk)


def test_of_two_creators_one_is_refused(store: BucketPath) -> None:
    write_whole(store / "lock", b"one", replace=False)
    with pytest.raises(FileExistsError):
        write_whole(store / "lock", b"two", replace=False)
    assert (store / "lock").read_bytes() == b"one"


def test_a_swap_over_another_version_is_refused(store: BucketPath) -> None:
    path = store / "fence"
    path.create(b"0")
    _, tag = path.read_stamped()
    newer = path.swap(b"1", tag)
    for stale in (tag, Tag("0" * 32, None)):
        with pytest.raises(Replaced):
            path.swap(b"2", stale)
    assert path.read_stamped() == (b"1", newer)
    path.unlink()
    with pytest.raises(Replaced):
        path.swap(b"2", newer)
    with pytest.raises(FileNotFoundError):
        path.unlink()
    path.unlink(missing_ok=True)


def test_trouble_is_an_error_of_the_system_that_names_the_object(store_server: Server) -> None:
    absent = BucketPath.parse(store_server.url("no-such-bucket"))
    with pytest.raises(FileNotFoundError) as missing:
        absent.write_bytes(b"")
    assert "no-such-bucket" in str(missing.value)
    gone = BucketPath.parse("s3://bucket/a?endpoint_override=127.0.0.1:9&scheme=http")
    with pytest.raises(OSError, match="the storage failed"):
        gone.read_bytes()
