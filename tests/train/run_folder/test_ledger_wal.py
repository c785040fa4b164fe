"""Write-ahead leaves: what was recorded once is repeated or the run stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Refused
from govray.governance.record.ledger import AnyLeaf, Leaf, Ledger, read_leaves
from govray.train.run_folder.ledger_tree import LedgerFile
from govray.train.run_folder.ledger_wal import WriteAhead
from tests.support.leaves import leaf, norms


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.ahead.jsonl"


def test_a_repeated_step_changes_nothing(path: Path) -> None:
    first = WriteAhead(path, ())
    for step in range(4):
        first.append(leaf(step))
    before = path.read_bytes()
    again = WriteAhead(path, (leaf(0), leaf(1)))
    again.append(leaf(2))
    again.append(leaf(3))
    assert path.read_bytes() == before
    assert again.leaves == [leaf(step) for step in range(4)]


def test_after_a_resize_the_steps_that_went_on_take_the_place_of_those_before(path: Path) -> None:
    """World sizes of one and two digits, so that lines move; and norms that vanish."""
    first = WriteAhead(path, ())
    for step in range(5):
        first.append(leaf(step, world=12), norms(step) if step in (1, 3) else None)
    resized = WriteAhead(path, (leaf(0, world=12),))
    resized.append(leaf(1, world=1), norms(1, square=0.25))
    resized.append(leaf(2, world=1))
    expected = (leaf(0, world=12), leaf(1, world=1), norms(1, square=0.25), leaf(2, world=1))
    tail = (leaf(3, world=12), norms(3), leaf(4, world=12))
    assert read_leaves(path.read_bytes()) == expected + tail
    assert tuple(resized.leaves) == expected
    again = WriteAhead(path, expected)
    for step in range(3, 7):
        again.append(leaf(step, world=123), norms(step))
    last = [each for step in range(3, 7) for each in (leaf(step, world=123), norms(step))]
    assert read_leaves(path.read_bytes()) == (*expected, *last)
    # What a step read may still not differ: the control.
    with pytest.raises(Refused, match="step 4"):
        WriteAhead(path, expected).append(leaf(4, world=2, rows=2))


@given(data=st.data())
def test_the_file_is_always_what_the_run_went_on_with(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any history of restarts, resizes and crashes: prefix as in the run, a valid ledger."""
    path = tmp_path_factory.mktemp("ahead") / "ledger.ahead.jsonl"
    committed: tuple[AnyLeaf, ...] = ()
    for _ in range(data.draw(st.integers(1, 5))):
        ahead = WriteAhead(path, committed)
        world = data.draw(st.sampled_from([1, 9, 10, 300]))
        begin = sum(isinstance(each, Leaf) for each in committed)
        for step in range(begin, begin + data.draw(st.integers(0, 6))):
            sampled = norms(step, rank=world - 1) if step % 2 else None
            ahead.append(leaf(step, world=world), sampled)
            if data.draw(st.booleans()):
                committed = tuple(ahead.leaves)
        held = read_leaves(path.read_bytes())
        assert held[: len(ahead.leaves)] == tuple(ahead.leaves)
        cut = data.draw(st.integers(0, 40))
        path.write_bytes(path.read_bytes()[: max(0, path.stat().st_size - cut)])


def test_a_file_that_is_behind_its_checkpoint_is_filled_up(path: Path) -> None:
    ahead = WriteAhead(path, (leaf(0), norms(0), leaf(1)))
    ahead.append(leaf(2))
    assert read_leaves(path.read_bytes()) == (leaf(0), norms(0), leaf(1), leaf(2))


def test_a_step_that_reads_other_rows_is_refused(path: Path) -> None:
    WriteAhead(path, ()).append(leaf(0))
    with pytest.raises(Refused, match="step 0"):
        WriteAhead(path, ()).append(leaf(0, rows=2))


def test_a_checkpoint_from_another_history_is_refused(path: Path) -> None:
    WriteAhead(path, ()).append(leaf(0))
    with pytest.raises(Refused, match="step 0"):
        WriteAhead(path, (leaf(0, rows=1),))


def test_a_repeated_step_may_measure_otherwise_and_its_own_norms_go_on(path: Path) -> None:
    """After a resize the pieces are others; on some devices so are the last bits."""
    WriteAhead(path, ()).append(leaf(0), norms(0))
    again = WriteAhead(path, ())
    again.append(leaf(0, world=4), norms(0, square=0.25, rank=3))
    assert again.leaves == [leaf(0, world=4), norms(0, square=0.25, rank=3)]
    assert read_leaves(path.read_bytes()) == tuple(again.leaves)
    # What it used may not differ, sampled or not: the control.
    with pytest.raises(Refused, match="step 0"):
        WriteAhead(path, ()).append(leaf(0, rows=2), norms(0))


@pytest.mark.parametrize("cut", [1, 7, len(norms(1).line) + 1])
def test_norms_that_a_crash_cut_short_are_dropped_and_the_step_stays(path: Path, cut: int) -> None:
    ahead = WriteAhead(path, ())
    ahead.append(leaf(0), norms(0))
    ahead.append(leaf(1), norms(1))
    path.write_bytes(path.read_bytes()[:-cut])
    resumed = WriteAhead(path, (leaf(0), norms(0)))
    assert read_leaves(path.read_bytes()) == (leaf(0), norms(0), leaf(1))
    resumed.append(leaf(1), norms(1))
    resumed.append(leaf(2))
    assert resumed.leaves == [leaf(0), norms(0), leaf(1), norms(1), leaf(2)]
    read_leaves(path.read_bytes())


EVERY: list[AnyLeaf] = [
    each for i in range(40) for each in ([leaf(i), norms(i)] if i % 7 == 0 else [leaf(i)])
]


@given(st.lists(st.integers(0, len(EVERY)), max_size=6).map(sorted))
def test_it_equals_the_ledger_at_every_length(lengths: list[int]) -> None:
    growing = LedgerFile()
    for length in lengths:
        growing.extend(EVERY[:length])
        whole = Ledger("run", EVERY[:length])
        assert (growing.data, growing.size, growing.root) == (whole.data, whole.size, whole.root)
