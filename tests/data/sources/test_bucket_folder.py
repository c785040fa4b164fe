"""Sources below URLs, on a real server of S3: the same records, and every trouble is named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from govray.data.sources import reader
from govray.data.sources.bucket_folder import open_bucket
from govray.data.sources.objects import find
from govray.errors import GovrayError, InfrastructureFailed, UsageError
from govray.storage import bucket as bucket_of_store
from tests.support import object_server
from tests.support.object_server import Bucket, Server
from tests.support.source_files import FORMATS, ROWS


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = object_server.start()
    yield started
    started.stop()


@pytest.fixture
def bucket(server: Server, tmp_path: Path) -> Bucket:
    name = f"data-{time.monotonic_ns()}"
    server.bucket(name)
    return Bucket(server, name)


def read(source: str, **options: Any) -> list[Any]:
    return list(reader.read(find(source), **options))


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.parquet", "rows.tar"])
def test_a_format_gives_the_records_that_the_file_gives(
    bucket: Bucket, tmp_path: Path, name: str
) -> None:
    FORMATS[name](tmp_path / name)
    bucket.take(tmp_path, "in/here")
    expected = read(str(tmp_path / name))
    assert len(expected) == len(ROWS)
    for key in (f"in/here/{name}", "in/here", "in/here/"):
        assert read(bucket.url(key)) == expected
    with pytest.raises(UsageError, match="no objects are there"):
        find(bucket.url("in/her"))


def test_a_folder_below_a_url_is_read_as_the_same_folder_of_a_disk(
    bucket: Bucket, tmp_path: Path
) -> None:
    for name in ("b.txt", "a/b.txt", "a.txt", "a b/ü.txt", ".hidden", ".git/config", "empty"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("" if name == "empty" else name)
    bucket.take(tmp_path, "in")
    for marker in ("in", "in/a", "in/bare"):
        bucket.mark(marker)
    found = read(bucket.url("in"))
    assert [each for each in found if each.name != "bare"] == read(str(tmp_path))
    assert len(find(bucket.url()).objects) >= 5


def lines(count: int, text: str = "x") -> bytes:
    return b"".join(b'{"text": "%s %09d"}\n' % (text.encode(), i) for i in range(count))


MANY = 60_000  # lines; more than the first request, of a mebibyte


@pytest.mark.parametrize(
    "disturb",
    [
        lambda bucket: None,
        lambda bucket: bucket.put("in/a.jsonl", lines(MANY, "y")),  # of one size, in one second
        lambda bucket: bucket.delete("in/a.jsonl"),
        lambda bucket: bucket.put("in/b.jsonl", lines(10, "y")),
        lambda bucket: bucket.put("in/c.jsonl", lines(1)),
    ],
    ids=["not", "replaced", "gone", "later replaced", "added"],
)
def test_an_object_that_changes_is_refused(
    bucket: Bucket, disturb: Callable[[Bucket], object], request: pytest.FixtureRequest
) -> None:
    bucket.put("in/a.jsonl", lines(MANY))
    bucket.put("in/b.jsonl", lines(10))
    reading: Iterator[Any] = reader.read(find(bucket.url("in")))
    next(reading)
    disturb(bucket)
    if request.node.callspec.id == "not":  # so what follows is due to the change alone
        assert len(list(reading)) == MANY + 9
        return
    with pytest.raises(UsageError, match=rf"s3://{bucket.name}/in.*changed while it was read"):
        list(reading)


def test_storage_that_disappears_is_named_with_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_of_store, "_RETRIES", {"max_retries": 0})
    own = object_server.start()
    try:
        own.bucket("gone")
        bucket = Bucket(own, "gone")
        bucket.put("a.jsonl", lines(MANY))
        assert len(read(bucket.url("a.jsonl"))) == MANY
        reading: Iterator[Any] = reader.read(find(bucket.url("a.jsonl")))
        next(reading)
    finally:
        own.stop()
    with pytest.raises(
        InfrastructureFailed,
        match=r"s3://gone/a\.jsonl: the storage failed: .*after row [\d,]+\d\.",
    ) as told:
        list(reading)
    assert told.value.do
    assert "Check the network" in told.value.do
    with pytest.raises(InfrastructureFailed, match="s3://gone"):
        find(bucket.url("a.jsonl"))


def test_an_error_holds_no_secret(bucket: Bucket) -> None:
    with pytest.raises(GovrayError) as told:
        find(bucket.url("none"))
    assert "endpoint_override" not in str(told.value)
    assert object_server.CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in str(told.value)


def test_a_key_with_an_empty_name_is_named_and_is_no_failure_of_the_network(bucket: Bucket) -> None:
    bucket.put("in/a.txt", b"x")
    # Past obstore, which puts no such key.
    key = f"http://127.0.0.1:{bucket.server.port}/{bucket.name}/in//b.txt"
    urlopen(Request(key, data=b"y", method="PUT")).close()
    folder, _ = open_bucket(bucket.url("in/"))
    with pytest.raises(UsageError, match=r"an empty name between two slashes.*in//b\.txt"):
        folder.list()
