"""Sources below URLs, on a real server of S3: the same records, and every trouble is named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from govray.data.sources import reader
from govray.data.sources.objects import find
from govray.errors import GovrayError, InfrastructureFailed, UsageError
from govray.storage import bucket as bucket_of_store
from govray.storage import bucket_path
from govray.storage.bucket_path import BucketPath, ObjectStat, Tag
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
    ],
    ids=["not", "replaced", "gone"],
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


def test_what_is_not_there_is_named(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=rf"s3://{bucket.name}/none/: no objects are there"):
        find(bucket.url("none"))
    with pytest.raises(UsageError, match=rf"s3://{bucket.name}/: no objects are there"):
        find(bucket.url())
    for key in ("", "in", "in/"):
        with pytest.raises(UsageError, match="no such bucket"):
            find(Bucket(bucket.server, "nobody-s").url(key))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{bucket.server.port}/nothing")
    bucket_path._opened.cache_clear()  # a process keeps its client
    bucket_of_another_role = Bucket(bucket.server, bucket.name).url("in")
    with pytest.raises(UsageError, match=r"no credentials .* were found.*AWS_ACCESS_KEY_ID"):
        find(bucket_of_another_role)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("abfs://container/data", "no credentials"),
        ("gs://bucket/data", ""),
        ("abfss://container@account.dfs.core.windows.net/data", ""),
    ],
)
def test_other_stores_have_clients(
    url: str, what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whose emulators none of our dependencies brings, or which speak another dialect."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "aHVzaA==")
    folder = BucketFolder(BucketPath.parse(url))
    if what:
        with pytest.raises(UsageError, match=what):
            folder.list()
    else:
        assert type(folder.path._store).__name__ in ("GCSStore", "AzureStore")


@pytest.mark.parametrize(
    ("listed", "same"), [("0x8DE2", True), ('"0x8DE2"', True), ("0x8DE3", False)]
)
def test_an_e_tag_is_the_same_with_and_without_its_quotes(listed: str, same: bool) -> None:
    """Azure lists it without them and answers a read with them; another tag still differs."""
    read, seen = (
        _stamp(ObjectStat(1, Tag(each, None), datetime.now(UTC))) for each in ('"0x8DE2"', listed)
    )
    assert (read == seen) is same


@dataclass(frozen=True)
class Counted(BucketFolder):
    sizes: list[int] = field(default_factory=list, compare=False)

    def read(self, name: str, start: int, stop: int) -> Any:
        self.sizes.append(stop - start)
        return super().read(name, start, stop)


def test_requests_are_few_and_bounded(bucket: Bucket, tmp_path: Path) -> None:
    size = 40 << 20
    columns = {"text": ["x" * 100] * 1000, "image": [os.urandom(20_000) for _ in range(1000)]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=100)
    bucket.put("a.parquet", (tmp_path / "a.parquet").read_bytes())
    bucket.put("a.bin", b"x" * size)
    folder = Counted(open_bucket(bucket.url())[0].path)
    with folder.open("a.bin", folder.stamp("a.bin")) as stream:
        assert sum(len(piece) for piece in iter(lambda: stream.read(1 << 16), b"")) == size
    assert sum(folder.sizes) == size
    assert max(folder.sizes) == _MOST
    assert len(folder.sizes) < 16
    folder.sizes.clear()
    found = SourceObject("a.parquet", folder, folder.stamp("a.parquet"))
    assert len(list(Table(found, "parquet", 1 << 20).rows({"text": "text"}))) == 1000
    assert sum(folder.sizes) < found.stamp.size / 5  # the images stay where they are


def test_many_small_objects_are_as_many_records(bucket: Bucket) -> None:
    """The server lists them in three pages, the last of one object."""
    many = 2 * object_server.PAGE + 1
    for i in range(many):
        bucket.put(f"in/{i:04}.txt", b"%d" % i)
    server = f"http://127.0.0.1:{bucket.server.port}/{bucket.name}?list-type=2"
    with urlopen(server, timeout=60) as listed:
        assert listed.read().count(b"<Key>") == object_server.PAGE
    found = read(bucket.url("in"))
    assert [each.content for each in found] == [b"%d" % i for i in range(many)]


def test_an_error_holds_no_secret(bucket: Bucket) -> None:
    with pytest.raises(GovrayError) as told:
        find(bucket.url("none"))
    assert "endpoint_override" not in str(told.value)
    assert object_server.CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in str(told.value)
