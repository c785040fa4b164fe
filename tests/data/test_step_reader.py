"""Reading: verified rows in the plan's order, from either source, at any world size."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import torch
from hypothesis import given
from hypothesis import strategies as st

from govray.data import arrow_rows, shard_file
from govray.data.admission import Prepared
from govray.data.arrow_rows import ArrowRows
from govray.data.prepared import partition
from govray.data.step_reader import StepReader, StepRows
from govray.errors import Malformed, Refused
from govray.governance.record import plan_rows, row_order
from govray.governance.record.batch_plan import BatchPlan, StreamCorpus, StreamPlan
from govray.governance.record.prepare_manifest import RowGroup
from govray.governance.record.row_order import RowOrder, round_keys
from govray.train.worker.planned_shard import PlannedRows
from tests.support.manifests import WHOLE
from tests.support.planned_counts import counted_in
from tests.support.shelf import Shelf
from tests.support.table import each_row

CONTEXT = 64
STREAMS = ["sha256:" + digit * 64 for digit in "ab"]
LOCAL = RowOrder(block=10, window=96)
"""So small that the corpora have many windows."""


@pytest.fixture(autouse=True)
def nothing_decoded() -> None:
    """Row groups that other tests decoded are not kept."""
    arrow_rows.DECODED.clear()


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
    prepared: Prepared,
    world: int,
    start: int,
    order: RowOrder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition, "ROWS_PER_BLOCK", 300)
    plan = make_plan(prepared, order=order, excluded=("two",))
    for rank, rows in enumerate(shards_of(prepared, plan, world, start)):
        far = replace(rows, by="ray_data")
        here, there = list(rows.steps()), list(far.steps())
        assert len(here) == len(there) == 60 - start
        assert all(same(a, b) for a, b in zip(here, there, strict=True))
        true = read_all(prepared, plan, rank, world)[start:]
        assert all(same(a, b) for a, b in zip(here, true, strict=True))
        assert counted_in(far.stats()) == {
            corpus: sum(each.corpora.count(corpus) for each in true) for corpus in ("one", "three")
        }


def test_a_shard_has_rays_interface_by_either_source(prepared: Prepared) -> None:
    [whole] = shards_of(prepared, make_plan(prepared), world=1, start=20)
    assert whole.schema().names == ["step", "tokens", "targets"]
    read = {}
    for by in ("worker", "ray_data"):
        shard = replace(whole, by=by).of("three")
        batches = list(shard.iter_torch_batches(batch_size=16))
        assert {len(each["tokens"]) for each in batches[:-1]} == {16}
        read[by] = {name: torch.cat([each[name] for each in batches]) for name in batches[0]}
        table = pa.concat_tables(ray.get(shard.materialize().to_arrow_refs()))
        assert table["step"].to_pylist() == read[by]["step"].tolist()
    for name, tensor in read["worker"].items():
        assert tensor.dtype == torch.int64
        assert torch.equal(tensor, read["ray_data"][name])
    true = [
        (found.step, found.tokens[row, :-1].tolist())
        for found in whole.steps()
        for row, corpus in enumerate(found.corpora)
        if corpus == "three"
    ]
    pairs = zip(read["worker"]["step"].tolist(), read["worker"]["tokens"].tolist(), strict=True)
    assert list(pairs) == true


@pytest.mark.parametrize("dealt", ["twice", "twice later", "too few", "of another"])
def test_a_row_that_is_dealt_wrongly_is_noticed(prepared: Prepared, dealt: str) -> None:
    reader = StepReader(prepared.folder, prepared.manifest, make_plan(prepared), rank=0, world=1)
    windows = [range(0, 30), range(30, 60)]
    blocks = [
        partition.encoded(reader.of(corpus).window(steps))
        for steps in windows
        for corpus in reader.corpora
    ]
    assert len(list(partition.in_plan_order(reader, windows, blocks))) == 2
    # Whatever order they come in.
    assert len(list(partition.in_plan_order(reader, windows, reversed(blocks)))) == 2
    first = blocks[0].slice(0, 1)
    other = first.set_column(2, "corpus", pa.array([1]))
    wrong = {
        "twice": [first, *blocks],
        "twice later": [*blocks, first],
        "too few": [blocks[0].slice(1), *blocks[1:]],
        "of another": [other, *blocks],
    }[dealt]
    with pytest.raises(Refused, match="Ray Data dealt"):
        list(partition.in_plan_order(reader, windows, wrong))


def test_a_plan_for_other_data_is_refused(prepared: Prepared) -> None:
    plan = make_plan(prepared)
    other = plan.streams[1].model_copy(update={"corpora": (StreamCorpus(corpus="two", rows=3),)})
    for wrong in (
        make_plan(prepared, context=CONTEXT + 1),
        make_plan(prepared, streams=(plan.streams[0], other)),
    ):
        with pytest.raises(Refused, match="made for other prepared data"):
            StepReader(prepared.folder, prepared.manifest, wrong, rank=0, world=1)


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
