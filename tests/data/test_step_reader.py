"""Reading: verified rows in the plan's order, from either source, at any world size."""

from __future__ import annotations

import hashlib
import itertools
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.data import shard_file
from govray.data import step_reader as reader_module
from govray.data.admission import Prepared
from govray.data.group_cache import GroupCache
from govray.data.step_reader import ArrowRows, StepReader, StepRows, planned_rows
from govray.errors import Malformed, Refused
from govray.governance.record import plan_rows, row_order
from govray.governance.record.batch_plan import BatchPlan, StreamCorpus, StreamPlan
from govray.governance.record.prepare_manifest import RowGroup
from govray.governance.record.row_order import RowOrder, round_keys
from govray.train.worker.planned_shard import PlannedRows
from tests.support.shelf import Shelf
from tests.support.table import each_row

CONTEXT = 64
STREAMS = ["sha256:" + digit * 64 for digit in "ab"]
LOCAL = RowOrder(block=10, window=96)
WHOLE = RowOrder(block=1, window=1 << 20)
"""So small that the corpora have many windows."""


@pytest.fixture(autouse=True)
def nothing_decoded() -> None:
    """Row groups that other tests decoded are not kept."""
    reader_module.DECODED.clear()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, cluster: None) -> Prepared:
    """Three corpora; the largest fills several row groups."""
    shelf = Shelf(tmp_path_factory.mktemp("shelf"))
    draw = random.Random(3)
    for name, count in {"one": 20, "two": 5, "three": 100}.items():
        content = {f"{i:03}": draw.randbytes(draw.randrange(1, 1600)) for i in range(count)}
        shelf.add(name, content)
    return shelf.prepare(context=CONTEXT)


def make_plan(prepared: Prepared, **changes: object) -> BatchPlan:
    rows = {c.corpus: prepared.manifest.train_rows(c.corpus) for c in prepared.manifest.corpora}
    one, three, two = (StreamCorpus(corpus=c, rows=rows[c]) for c in ("one", "three", "two"))
    streams = (
        StreamPlan(id=STREAMS[0], profile="everything", corpora=(one, three), phase=0, quota=7),
        # Two epochs of a small corpus, every third step, then silence.
        StreamPlan(
            id=STREAMS[1], profile="half", corpora=(two,), phase=0, quota=9, every=3, epochs=2
        ),
    )
    fields = {"seed": 17, "max_steps": 60, "manifest": prepared.digest, "context": CONTEXT}
    return BatchPlan.model_validate(fields | {"streams": streams, "order": WHOLE} | changes)


def read_all(prepared: Prepared, plan: BatchPlan, rank: int = 0, world: int = 1) -> list[StepRows]:
    reader = StepReader(prepared.folder, prepared.manifest, plan, rank=rank, world=world)
    return list(reader.steps())


def same(a: StepRows, b: StepRows) -> bool:
    return (
        (a.step, a.streams, a.corpora, a.error) == (b.step, b.streams, b.corpora, b.error)
        and a.tokens.dtype == b.tokens.dtype == np.uint32
        and np.array_equal(a.tokens, b.tokens)
        and np.array_equal(a.lengths, b.lengths)
        and np.array_equal(a.positions, b.positions)
    )


@given(
    n=st.integers(1, 2**53 - 1) | st.integers(1, 40),
    seed=st.integers(0, 2**53 - 1),
    data=st.data(),
)
def test_the_array_permutation_is_the_plans(n: int, seed: int, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    keys = round_keys(seed, STREAMS[0], 0)
    found = plan_rows.permute(keys, n, np.array(indices, dtype=np.uint64))
    assert found.tolist() == [row_order.permute(keys, n, i) for i in indices]


def test_the_array_permutation_is_a_bijection_and_checks_its_domain() -> None:
    keys = round_keys(1, STREAMS[0], 0)
    assert sorted(plan_rows.permute(keys, 1000, np.arange(1000)).tolist()) == list(range(1000))
    assert plan_rows.permute(keys, 9, np.zeros((2, 3), dtype=np.int64)).shape == (2, 3)
    for bad in (-1, 1000):
        with pytest.raises(ValueError, match="outside"):
            plan_rows.permute(keys, 1000, np.array([bad]))


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any),
    epochs=st.integers(1, 4),
    excluded=st.sets(st.integers(0, 3)),
    order=st.just(WHOLE) | st.builds(RowOrder, block=st.integers(1, 3), window=st.integers(3, 9)),
    data=st.data(),
)
def test_planned_rows_are_the_plans(
    sizes: list[int],
    epochs: int,
    excluded: set[int],
    order: RowOrder,
    data: st.DataObject,
) -> None:
    corpora = tuple(StreamCorpus(corpus=f"c{i}", rows=n) for i, n in enumerate(sizes))
    stream = StreamPlan(
        id=STREAMS[0], profile="p", corpora=corpora, phase=0, quota=5, epochs=epochs
    )
    plan = BatchPlan(
        seed=5,
        max_steps=3,
        manifest="sha256:" + "0" * 64,
        context=4,
        order=order,
        streams=(stream,),
        excluded=tuple(f"c{i}" for i in sorted(excluded) if i < len(sizes)),
    )
    start = data.draw(st.integers(0, stream.length))
    stop = data.draw(st.integers(start, stream.length))
    span = range(start, stop)
    assert list(planned_rows(plan, stream.id, span)) == list(plan.read(stream.id, span))


@pytest.mark.parametrize("order", [WHOLE, LOCAL])
def test_steps_hold_the_planned_rows(prepared: Prepared, order: RowOrder) -> None:
    plan = make_plan(prepared, order=order)
    rows = ArrowRows(prepared.folder, prepared.manifest)
    steps = read_all(prepared, plan)
    assert [s.step for s in steps] == list(range(60))
    for found in steps:
        starts = {stream: span.start for stream, span in plan.positions(found.step).items()}
        planned = [(s, *place) for s, places in plan.rows(found.step).items() for place in places]
        assert found.streams == tuple(s for s, *_ in planned)
        assert found.corpora == tuple(corpus for _, _, corpus, _ in planned)
        assert found.positions.tolist() == [p - starts[s] for s, p, *_ in planned]
        assert found.tokens.shape == (len(planned), CONTEXT + 1)
        for i, (_, _, corpus, row) in enumerate(planned):
            length = found.lengths[i]
            assert length == prepared.manifest.row_length(corpus, row)
            assert found.tokens[i, :length].tolist() == rows.row(corpus, row).tolist()
            assert not found.tokens[i, length:].any()
    assert any(STREAMS[1] not in s.streams for s in steps)
    assert {len(s.lengths) for s in steps} > {7, 16}


@each_row("order", [WHOLE, LOCAL])
@each_row("world", [2, 3, 5, 20])
def test_ranks_concatenate_to_the_plan(prepared: Prepared, world: int, order: RowOrder) -> None:
    plan = make_plan(prepared, order=order)
    ranks = [read_all(prepared, plan, rank, world) for rank in range(world)]
    for whole, *parts in zip(read_all(prepared, plan), *ranks, strict=True):
        for stream in STREAMS:
            mine = [i for i, s in enumerate(whole.streams) if s == stream]
            joined = [
                (part.positions[i], part.corpora[i], part.lengths[i], part.tokens[i].tobytes())
                for part in parts
                for i, s in enumerate(part.streams)
                if s == stream
            ]
            assert joined == [
                (whole.positions[i], whole.corpora[i], whole.lengths[i], whole.tokens[i].tobytes())
                for i in mine
            ]


@pytest.mark.parametrize("order", [WHOLE, LOCAL])
def test_resuming_reads_what_an_unbroken_run_reads(prepared: Prepared, order: RowOrder) -> None:
    plan = make_plan(prepared, order=order)
    reader = StepReader(prepared.folder, prepared.manifest, plan, rank=1, world=2)
    for resumed, unbroken in zip(
        reader.steps(41), read_all(prepared, plan, 1, 2)[41:], strict=True
    ):
        assert same(resumed, unbroken)


@pytest.mark.parametrize("order", [WHOLE, LOCAL])
def test_excluded_rows_are_tombstones(prepared: Prepared, order: RowOrder) -> None:
    with_it = read_all(prepared, make_plan(prepared, order=order))
    without = read_all(prepared, make_plan(prepared, order=order, excluded=("one",)))
    assert any("one" in s.corpora for s in with_it)
    for a, b in zip(with_it, without, strict=True):
        kept = [i for i, corpus in enumerate(a.corpora) if corpus != "one"]
        assert b.corpora == tuple(a.corpora[i] for i in kept)
        assert b.positions.tolist() == a.positions[kept].tolist()
        assert np.array_equal(b.tokens, a.tokens[kept])


def shards_of(prepared: Prepared, plan: BatchPlan, world: int, start: int) -> list[PlannedRows]:
    return [
        PlannedRows(
            start,
            None,
            1,
            60,
            StepReader(prepared.folder, prepared.manifest, plan, rank=r, world=world),
        )
        for r in range(world)
    ]


@pytest.mark.parametrize(("world", "start", "order"), [(1, 0, LOCAL), (3, 17, WHOLE)])
def test_both_sources_give_the_same_bytes(
    prepared: Prepared, world: int, start: int, order: RowOrder
) -> None:
    plan = make_plan(prepared, order=order, excluded=("two",))
    for rank, rows in enumerate(shards_of(prepared, plan, world, start)):
        here, there = list(rows.here()), list(rows.through_ray_data())
        assert len(here) == len(there) == 60 - start
        assert all(same(a, b) for a, b in zip(here, there, strict=True))
        true = read_all(prepared, plan, rank, world)[start:]
        assert all(same(a, b) for a, b in zip(here, true, strict=True))


def test_both_sources_say_which_steps_cannot_be_read(prepared: Prepared, tmp_path: Path) -> None:
    spoilt = Prepared(Path(shutil.copytree(prepared.folder, tmp_path / "p")), prepared.envelope)
    (part,) = prepared.manifest.corpus("three").parts
    (spoilt.folder / part.file).unlink()
    rows = shards_of(spoilt, make_plan(prepared), 3, 0)[2]
    assert rows.reader.readable_here  # the folder is: an error, not another source
    here, there = list(rows.here()), list(rows.through_ray_data())
    assert all(same(a, b) for a, b in zip(here, there, strict=True))
    assert any(s.error for s in here)
    for step in here:
        assert step.error is None or ("shard is missing" in step.error and part.file in step.error)


def test_a_worker_takes_the_nearer_source(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    [here] = shards_of(prepared, make_plan(prepared), 1, 0)
    elsewhere = StepReader(
        prepared.folder / "absent", prepared.manifest, make_plan(prepared), rank=0, world=1
    )
    monkeypatch.setattr(PlannedRows, "through_ray_data", lambda _: iter("far"))
    assert [rows.step for rows in here] == list(range(60))
    assert list(PlannedRows(0, None, 1, 60, elsewhere)) == [*"far"]
    # The experiment's word goes before what is near.
    assert list(replace(here, by="ray_data")) == [*"far"]
    [first, *_] = PlannedRows(0, None, 1, 60, elsewhere, by="worker")
    assert "the shard is missing" in str(first.error)


def test_a_late_start_costs_what_an_early_one_costs(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten steps from step 10,000 on read ten steps' row groups: nothing before is replayed."""
    rows = {c.corpus: prepared.manifest.train_rows(c.corpus) for c in prepared.manifest.corpora}
    stream = StreamPlan(
        id=STREAMS[0],
        profile="p",
        corpora=(StreamCorpus(corpus="three", rows=rows["three"]),),
        phase=0,
        quota=4,
        epochs=10**6,
    )
    plan = make_plan(prepared, streams=(stream,), max_steps=10**6)
    read: list[tuple[str, int]] = []
    permuted: list[int] = []
    true_read, true_permute = shard_file.ShardFile.read, plan_rows.permute

    def counted(self: shard_file.ShardFile, group: int, *rest: Any) -> shard_file.Rows:
        read.append((str(self), group))
        return true_read(self, group, *rest)

    def permute(keys: Any, n: int, indices: Any) -> Any:
        permuted.append(indices.size)
        return true_permute(keys, n, indices)

    monkeypatch.setattr(shard_file.ShardFile, "read", counted)
    monkeypatch.setattr(plan_rows, "permute", permute)
    part = prepared.manifest.corpus("three").parts[0]
    groups = -(-part.rows // part.rows_per_group)
    for start in (0, 10_000, 900_000):
        reader_module.DECODED.clear()
        read.clear()
        permuted.clear()
        reader = StepReader(prepared.folder, prepared.manifest, plan, rank=0, world=1)
        found = list(itertools.islice(reader.steps(start), 10))
        assert [s.step for s in found] == list(range(start, start + 10))
        # Four windows, of 1, 2, 4 and 8 steps.
        assert sum(permuted) == 15 * 4
        assert 1 <= len(read) <= groups


def test_windows_double_up_to_a_bound(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = StepReader(prepared.folder, prepared.manifest, make_plan(prepared), rank=0, world=1)
    assert [len(window) for window in reader.windows()] == [1, 2, 4, 8, 16, 29]
    assert [[rows.step for rows in window] for window in reader.windows(3, 5)] == [[3], [4]]
    monkeypatch.setattr(reader_module, "WINDOW_STEPS", 6)
    assert [len(window) for window in reader.windows(40)] == [1, 2, 4, 6, 6, 1]
    monkeypatch.setattr(reader_module, "WINDOW_TOKENS", 30 * (CONTEXT + 1))
    held = list(reader.windows())
    assert [rows.step for window in held for rows in window] == list(range(60))
    # A window is full as soon as it reaches the bound.
    assert all(sum(len(rows.lengths) for rows in window[:-1]) < 30 for window in held)


def test_a_row_group_is_decoded_once_a_window(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    true_read = shard_file.ShardFile.read

    def counted(self: shard_file.ShardFile, *place: Any) -> shard_file.Rows:
        read.append((id(self), place[0]))
        return true_read(self, *place)

    monkeypatch.setattr(shard_file.ShardFile, "read", counted)
    reader = StepReader(prepared.folder, prepared.manifest, make_plan(prepared), rank=0, world=1)
    for window in reader.windows():
        reader_module.DECODED.clear()
        assert len(read) == len(set(read)) <= sum(len(rows.lengths) for rows in window)
        read.clear()


LONG = 4095
"""A context of which a row group holds 8 rows."""


@pytest.fixture(scope="module")
def many_groups(tmp_path_factory: pytest.TempPathFactory, cluster: None) -> Prepared:
    """One corpus of 160 row groups of 8 rows, more or less."""
    shelf = Shelf(tmp_path_factory.mktemp("many"))
    draw = random.Random(4)
    shelf.add("one", {f"{i:03}": draw.randbytes((1 << 15) - 1) for i in range(400)})
    return shelf.prepare(context=LONG)


def decodings(
    prepared: Prepared,
    order: RowOrder,
    monkeypatch: pytest.MonkeyPatch,
    *,
    world: int = 1,
    kept: int = 48,
) -> float:
    """How often rank 0 decodes a row group in an epoch, on average.

    Memory is scarce: a reading is as long as a window, and ``kept`` row groups stay.
    """
    [corpus] = prepared.manifest.corpora
    rows = prepared.manifest.train_rows(corpus.corpus)
    one = StreamCorpus(corpus=corpus.corpus, rows=rows)
    stream = StreamPlan(id=STREAMS[0], profile="p", corpora=(one,), phase=0, quota=8)
    plan = BatchPlan(
        seed=17,
        max_steps=-(-rows // 8),
        manifest=prepared.digest,
        context=LONG,
        order=order,
        streams=(stream,),
    )
    read = 0
    true_read = shard_file.ShardFile.read

    def counted(self: shard_file.ShardFile, *place: Any) -> shard_file.Rows:
        nonlocal read
        read += 1
        return true_read(self, *place)

    group_bytes = 8 * (LONG + 1) * 2
    with monkeypatch.context() as patch:
        patch.setattr(shard_file.ShardFile, "read", counted)
        patch.setattr(reader_module, "DECODED", GroupCache(kept * group_bytes))
        patch.setattr(reader_module, "WINDOW_TOKENS", 192 // world * (LONG + 1))
        reader = StepReader(prepared.folder, prepared.manifest, plan, rank=0, world=world)
        seen = sum(len(step.lengths) for step in reader.steps())
    assert abs(seen - rows / world) <= plan.max_steps
    return read / (rows / 8)


@pytest.mark.parametrize(("world", "whole"), [(1, 2.5), (4, 1.3)])
def test_a_local_order_decodes_a_row_group_about_once(
    many_groups: Prepared, monkeypatch: pytest.MonkeyPatch, world: int, whole: float
) -> None:
    """Blocks that begin where row groups do, and others. Each rank decodes what all do.

    The control is an order of the whole. There a rank of four, which has two rows of a row group,
    cannot decode it more than twice.
    """
    aligned = RowOrder(block=16, window=192)
    assert decodings(many_groups, aligned, monkeypatch, world=world) < 1.1
    assert decodings(many_groups, WHOLE, monkeypatch, world=world) > whole
    odd = RowOrder(block=17, window=17 * 11)
    assert decodings(many_groups, odd, monkeypatch, world=world) < 1.7


def test_what_is_kept_spares_the_next_reading(
    many_groups: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readings do not end where windows do. The control keeps nothing."""
    order = RowOrder(block=16, window=192)
    assert decodings(many_groups, order, monkeypatch, kept=0) > 1.7


def test_a_plan_for_other_data_is_refused(prepared: Prepared) -> None:
    plan = make_plan(prepared)
    other = plan.streams[1].model_copy(update={"corpora": (StreamCorpus(corpus="two", rows=3),)})
    for wrong in (
        make_plan(prepared, context=CONTEXT + 1),
        make_plan(prepared, streams=(plan.streams[0], other)),
    ):
        with pytest.raises(Refused, match="made for other prepared data"):
            StepReader(prepared.folder, prepared.manifest, wrong, rank=0, world=1)


def test_there_is_no_row_outside_a_corpus(prepared: Prepared) -> None:
    rows = ArrowRows(prepared.folder, prepared.manifest)
    for row in (-1, rows.rows_in("two")):
        with pytest.raises(ValueError, match=r"row .* of two is outside"):
            rows.row("two", row)
    assert rows.rows_in("absent") == 0


@given(
    st.sampled_from(["<u2", "<u4"]),
    st.integers(1, 9),
    st.lists(st.integers(0, 2**16 - 1), max_size=60),
    st.integers(1, 40),
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    dtype: str,
    context: int,
    stream: list[int],
    group_tokens: int,
) -> None:
    path = tmp_path_factory.mktemp("shard") / "s.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_file, "ROW_GROUP_TOKENS", group_tokens)
        groups = shard_file.write(path, np.array(stream, dtype=dtype), context)
    file = shard_file.ShardFile(path)
    found = [
        rows.row(i).tolist()
        for k, group in enumerate(groups)
        for rows in [file.read(k, group.digest, np.dtype(dtype))]
        for i in range(group.rows)
    ]
    cut = [stream[i : i + context + 1] for i in range(0, len(stream), context + 1)]
    assert found == [row for row in cut if len(row) >= 2]


def test_the_digest_is_of_the_content_not_of_its_storage() -> None:
    lengths = np.array([3, 2])
    # Counts and ids as little-endian uint32, by hand.
    content = b"\3\0\0\0\1\0\0\0\2\0\0\0\0\1\0\0\2\0\0\0\4\0\0\0\5\0\0\0"
    for dtype in ("<u2", "<u4"):
        rows = shard_file.Rows(np.array([1, 2, 256, 4, 5], dtype=dtype), lengths)
        assert rows.digest == "sha256:" + hashlib.sha256(content).hexdigest()


@pytest.fixture(scope="module")
def small_shard(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[RowGroup, ...]]:
    path = tmp_path_factory.mktemp("small") / "s.parquet"
    stream = np.array([random.Random(1).choices(range(97, 123), k=3000)], dtype="<u2")[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_file, "ROW_GROUP_TOKENS", 600)
        return path, shard_file.write(path, stream, 32)


class AnyDigest(str):
    """Equal to every digest: the check switched off."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


def flipped(data: bytes) -> list[bytes]:
    """One bit changed, at positions sampled over the whole file, its footer included."""
    draw = random.Random(2)
    return [
        data[:p] + bytes([data[p] ^ (1 << draw.randrange(8))]) + data[p + 1 :]
        for p in draw.sample(range(len(data)), 400)
    ]


def test_a_changed_byte_never_changes_a_row(
    small_shard: tuple[Path, tuple[RowGroup, ...]], tmp_path: Path
) -> None:
    original, groups = small_shard
    dtype = np.dtype("<u2")
    true = [shard_file.ShardFile(original).read(k, g.digest, dtype) for k, g in enumerate(groups)]
    refused: list[tuple[Path, Refused]] = []
    unnoticed = 0
    for i, data in enumerate(flipped(original.read_bytes())):
        path = tmp_path / f"{i}.parquet"
        path.write_bytes(data)
        for k, group in enumerate(groups):
            try:
                rows = shard_file.ShardFile(path).read(k, group.digest, dtype)
            except Refused as error:
                refused.append((path, error))
            else:
                # The byte belongs to another row group, or to nothing that is read.
                assert rows.values.tolist() == true[k].values.tolist()
                assert rows.lengths.tolist() == true[k].lengths.tolist()
            # Control: without the digest, some changes pass as rows.
            try:
                rows = shard_file.ShardFile(path).read(k, AnyDigest(), dtype)
                unnoticed += rows.values.tolist() != true[k].values.tolist()
            except Malformed:
                pass
    assert len(refused) > 400
    assert all(str(path) in str(error) for path, error in refused)
    assert unnoticed > 50


def swap_halves(path: Path) -> None:
    table = pq.read_table(path)
    half = table.num_rows // 2
    pq.write_table(pa.concat_tables([table[half:], table[:half]]), path, row_group_size=half)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (Path.unlink, "the shard is missing"),
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), "not a readable shard"),
        (lambda p: pq.write_table(pa.table({"x": [1]}), p), "not a shard of packed rows"),
        (
            lambda p: pq.write_table(shard_file.SCHEMA.empty_table(), p),
            "row group 0: the rows are not",
        ),
        (lambda p: pq.write_table(pq.read_table(p)[:18], p), "row group 1: .* not decode"),
        (swap_halves, "row group 0: the rows are not those"),
    ],
    ids=["missing", "cut", "columns", "empty", "shorter", "swapped"],
)
def test_a_spoilt_shard_is_named(
    small_shard: tuple[Path, tuple[RowGroup, ...]],
    tmp_path: Path,
    spoil: Callable[[Path], object],
    says: str,
) -> None:
    original, groups = small_shard
    path = Path(shutil.copy(original, tmp_path / "s.parquet"))
    spoil(path)
    with pytest.raises(Refused, match=says) as refused:  # noqa: PT012  any of the row groups
        file = shard_file.ShardFile(path)
        for k, group in enumerate(groups):
            file.read(k, group.digest, np.dtype("<u2"))
    assert str(path) in str(refused.value)


def test_a_step_that_cannot_be_read_says_why(prepared: Prepared, tmp_path: Path) -> None:
    (part,) = prepared.manifest.corpus("three").parts
    assert part.rows > part.rows_per_group
    folder = Path(shutil.copytree(prepared.folder, tmp_path / "p"))
    data = bytearray((folder / part.file).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / part.file).write_bytes(data)
    spoilt = read_all(Prepared(folder, prepared.envelope), make_plan(prepared))
    good = read_all(prepared, make_plan(prepared))
    bad = [s for s in spoilt if s.error]
    assert 0 < len(bad) < len(spoilt)
    for found, true in zip(spoilt, good, strict=True):
        assert same(found, true) or (found.error and part.file in found.error)
    assert all("row group" in (s.error or "") and len(s.lengths) == 0 for s in bad)
