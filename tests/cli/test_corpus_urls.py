"""`corpus build` and `corpus split` of what lies on an object store."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import object_server
from tests.support.command import Run
from tests.support.object_server import Bucket, Server
from tests.support.source_files import parquet


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = object_server.start()
    yield started
    started.stop()


@pytest.fixture
def bucket(server: Server) -> Bucket:
    name = f"data-{time.monotonic_ns()}"
    server.bucket(name)
    return Bucket(server, name)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.parquet"])
def test_an_object_that_was_cut_is_named_with_the_row(
    run: Run, bucket: Bucket, tmp_path: Path, name: str
) -> None:
    if name.endswith("gz"):
        data = gzip.compress(b"".join(b'{"text": "row %d"}\n' % i for i in range(50_000)))
    else:
        rows = pa.table({"text": [f"row {i}" for i in range(50_000)]})
        pq.write_table(rows, tmp_path / name, row_group_size=1000, compression="none")
        data = (tmp_path / name).read_bytes()
    bucket.put(f"in/{name}", data)
    words = ["--license", "MIT", "--issuer", "archive", "--jurisdiction", "DE", "--name", "notes"]
    assert "50,000 records" in run("corpus", "build", bucket.url(f"in/{name}"), *words).out
    bucket.put(f"in/{name}", data[: len(data) // 2])
    for key in (f"in/{name}", "in"):
        words[-1] = "cut"
        told = run("corpus", "build", bucket.url(key), *words, code=1).err
        assert f"s3://{bucket.name}/in/{name}: cannot be read after row" in told
    assert [path.name for path in Path("data/corpora").iterdir()] == ["notes"]


def test_a_split_of_a_bucket_is_that_of_the_file(run: Run, bucket: Bucket, tmp_path: Path) -> None:
    parquet(tmp_path / "web.parquet")
    bucket.put("web.parquet", (tmp_path / "web.parquet").read_bytes())
    made = []
    for source, out in ((str(tmp_path / "web.parquet"), "disk"), (bucket.url(), "url")):
        words = ("--name", "web", "--issuer", "archive", "--sensitivity", "public",
                 "--out", out, "--json")  # fmt: skip
        told = run("corpus", "split", source, *words).json
        parts = [path.read_bytes() for path in sorted(Path(out).rglob("*.parquet"))]
        # Each corpus has a secret of its own, so a root of its own.
        stated = [
            {name: each[name] for name in ("corpus", "license", "records", "bytes")}
            for each in told["corpora"]
        ]
        made.append((stated, parts, told["quarantine"]))
    assert made[0] == made[1]
    assert len(made[0][1]) == 2
