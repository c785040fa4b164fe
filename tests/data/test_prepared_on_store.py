"""Corpora and prepared data below a bucket: the bytes of a disk's, read and made the same way."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from govray.data import arrow_rows, corpus
from govray.data.admission import Prepared
from govray.data.prepared import object_ranges
from govray.data.step_reader import StepReader, StepRows
from govray.governance.record.prepare_manifest import MANIFEST_FILE
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place
from govray.train.worker.planned_shard import PlannedRows
from tests.support import object_server
from tests.support.manifests import one_stream
from tests.support.object_server import Bucket, Server
from tests.support.shelf import Shelf

CONTEXT = 64


@pytest.fixture(scope="module")
def server(cluster: None) -> Iterator[Server]:
    started = object_server.start()
    yield started
    started.stop()


def new_bucket(server: Server) -> BucketPath:
    name = f"prepared-{time.monotonic_ns()}"
    server.bucket(name)
    return BucketPath.parse(Bucket(server, name).url("below"))


@pytest.fixture
def bucket(server: Server) -> BucketPath:
    return new_bucket(server)


@pytest.fixture(autouse=True)
def nothing_read() -> None:
    arrow_rows.forget()


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    """Two corpora of several parts, whose parts have several row groups."""
    made = Shelf(tmp_path_factory.mktemp("shelf"))
    draw = random.Random(5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "PART_BYTES", 100_000)
        for name, count in {"one": 60, "two": 200}.items():
            made.add(name, {f"{i:03}": draw.randbytes(draw.randrange(2000)) for i in range(count)})
    return made


@pytest.fixture(scope="module")
def on_disk(shelf: Shelf, cluster: None) -> Prepared:
    return shelf.prepare(context=CONTEXT)


@pytest.fixture(scope="module")
def on_store(shelf: Shelf, server: Server) -> Prepared:
    return shelf.prepare(context=CONTEXT, at=new_bucket(server) / "prepared" / "name")


def read_by_ranges(patch: pytest.MonkeyPatch) -> None:
    """As data are read that are larger than what is fetched whole."""
    patch.setattr(arrow_rows, "WHOLE_BYTES", 0)
    patch.setattr(object_ranges, "END", 1024)


def files_of(folder: Place) -> dict[str, bytes]:
    if isinstance(folder, BucketPath):
        return {name: (folder / name).read_bytes() for name in folder.walk_files()}
    paths = sorted(each for each in folder.rglob("*") if each.is_file())
    return {each.relative_to(folder).as_posix(): each.read_bytes() for each in paths}


def reader_of(prepared: Prepared, rank: int = 0, world: int = 1) -> StepReader:
    rows = {c.corpus: prepared.manifest.train_rows(c.corpus) for c in prepared.manifest.corpora}
    plan = one_stream(rows, steps=40, quota=50, manifest=prepared.digest, context=CONTEXT)
    return StepReader(prepared.folder, prepared.manifest, plan, rank=rank, world=world)


def same(a: StepRows, b: StepRows) -> bool:
    return (
        np.array_equal(a.tokens, b.tokens)
        and np.array_equal(a.lengths, b.lengths)
        and a.positions.tolist() == b.positions.tolist()
        and (a.step, a.corpora, a.error) == (b.step, b.corpora, b.error)
    )


def test_a_store_gets_the_bytes_of_a_disk(on_disk: Prepared, on_store: Prepared) -> None:
    assert files_of(on_store.folder) == files_of(on_disk.folder)
    assert on_store.digest == on_disk.digest


@pytest.mark.parametrize(("world", "whole"), [(1, True), (3, False)])
def test_both_sources_give_the_bytes_of_a_disk(
    on_disk: Prepared,
    on_store: Prepared,
    world: int,
    whole: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not whole:
        read_by_ranges(monkeypatch)
    for rank in range(world):
        true = list(reader_of(on_disk, rank, world).steps(0))
        assert not any(rows.error for rows in true)
        for start in (0, 17):
            reader = reader_of(on_store, rank, world)
            assert reader.readable_here
            arrow_rows.forget()
            rows = PlannedRows(start, None, 1, 40, reader)
            found = list(rows.steps())
            assert all(same(a, b) for a, b in zip(found, true[start:], strict=True))
        far = list(replace(rows, by="ray_data").steps())
        assert all(same(a, b) for a, b in zip(far, true[start:], strict=True))


@pytest.mark.parametrize("whole", [True, False])
def test_an_object_that_changes_or_goes_is_an_error_of_its_steps(
    shelf: Shelf, bucket: BucketPath, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not whole:
        read_by_ranges(monkeypatch)
    made = shelf.prepare(context=CONTEXT, at=bucket / "prepared")
    reader = reader_of(made)
    assert not any(rows.error for rows in reader.steps())
    part = made.manifest.corpus("two").parts[0].file
    path = bucket / "prepared" / part
    data = path.read_bytes()

    def found() -> list[StepRows]:
        return [rows for rows in reader.steps() if rows.error]

    # Another version is verified as it is: equal rows are as good.
    path.write_bytes(data)
    arrow_rows.DECODED.clear()
    assert not found()
    other = made.manifest.corpus("one").parts[0].file
    path.write_bytes((bucket / "prepared" / other).read_bytes())
    arrow_rows.DECODED.clear()
    assert whole or found()  # what was fetched whole is still there
    arrow_rows.forget()
    spoilt = found()
    assert spoilt
    for rows in spoilt:
        assert rows.refused
        assert part in str(rows.error)
        assert "not those that the manifest was signed for" in str(rows.error)
    path.unlink()
    arrow_rows.forget()
    assert all(rows.refused and "the shard is missing" in str(rows.error) for rows in found())
    assert len(found()) == len(spoilt)


def test_a_store_that_fails_is_an_error_that_may_pass(
    shelf: Shelf, on_store: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module(), "_RETRIES", {"max_retries": 0})
    lost = object_server.start()
    lost.bucket("gone-later")
    made = shelf.prepare(
        context=CONTEXT, at=BucketPath.parse(Bucket(lost, "gone-later").url("prepared"))
    )
    reader = reader_of(made)
    lost.stop()
    rows = reader.read(0)
    assert rows.error
    assert not rows.refused
    assert "cannot be fetched" in rows.error
    assert "gone-later" in rows.error
    assert reader.readable_here  # the answer is an error, not another source


def bucket_module() -> Any:
    from govray.storage import bucket

    return bucket


def test_of_two_preparers_the_second_gets_the_firsts(
    shelf: Shelf, bucket: BucketPath, on_disk: Prepared
) -> None:
    """The second begins while the first packs, with another salt, and is done before it."""
    inner: list[Prepared] = []

    def meanwhile(done: int, total: int) -> None:
        if done and not inner:
            inner.append(shelf.prepare(context=CONTEXT, at=bucket / "p", salt=b"\x09" * 32))

    outer = shelf.prepare(context=CONTEXT, at=bucket / "p", progress=meanwhile)
    assert outer.envelope == inner[0].envelope
    assert outer.digest == on_disk.digest  # by the first one's salt
    assert files_of(outer.folder) == files_of(on_disk.folder)


def goes_on(shelf: Shelf, on_disk: Prepared, at: Place, draft: Place) -> None:
    """What a preparation left is used by the next; what is damaged of it is packed again."""
    assert not (at / MANIFEST_FILE).exists()
    done = {each.name for each in (draft / ".draft").iterdir()}
    parts = [part.file for each in on_disk.manifest.corpora for part in each.parts]
    finished = [file for file in parts if file.replace("/", "-") + ".json" in done]
    before = {file: written(draft / file) for file in finished}
    # One of them is cut, as by a disk that lost its last seconds.
    cut = finished[0]
    (draft / cut).write_bytes((draft / cut).read_bytes()[:-100])

    again = shelf.prepare(context=CONTEXT, at=at, salt=b"\x09" * 32)
    assert again.digest == on_disk.digest  # the first try's salt, too
    assert files_of(again.folder) == files_of(on_disk.folder)
    again_written = {file for file in finished if written(again.folder / file) != before[file]}
    # A store tells the time by the second, so it may not tell what was written again.
    assert again_written == {cut} or (isinstance(at, BucketPath) and not again_written)


@pytest.mark.parametrize("where", ["disk", "store"])
def test_a_preparation_that_was_cut_short_goes_on(
    shelf: Shelf, on_disk: Prepared, bucket: BucketPath, tmp_path: Path, where: str
) -> None:
    at: Place = tmp_path / "prepared" if where == "disk" else bucket / "prepared"

    def interrupt(done: int, total: int) -> None:
        if done > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shelf.prepare(context=CONTEXT, at=at, salt=b"\x07" * 32, progress=interrupt)
    goes_on(shelf, on_disk, at, tmp_path / ".prepared.partial" if where == "disk" else at)


def written(path: Place) -> object:
    return path.stat().modified if isinstance(path, BucketPath) else path.stat().st_mtime_ns
