"""Write-ahead leaves: what was recorded once is repeated or the run stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from leaves import leaf, norms

from govray.errors import Refused
from govray.governance.ledger import read_leaves
from govray.train.writeahead import WriteAhead


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.ahead.jsonl"


def test_leaves_are_on_disk_as_they_are_appended(path: Path) -> None:
    ahead = WriteAhead(path, ())
    for step in range(3):
        ahead.append(leaf(step))
        assert read_leaves(path.read_bytes())[-1] == leaf(step)


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


def test_another_world_size_repeats_a_step(path: Path) -> None:
    WriteAhead(path, ()).append(leaf(0, world=4))
    WriteAhead(path, ()).append(leaf(0, world=1))


def test_a_step_that_reads_other_rows_is_refused(path: Path) -> None:
    WriteAhead(path, ()).append(leaf(0))
    with pytest.raises(Refused, match="step 0"):
        WriteAhead(path, ()).append(leaf(0, rows=2))


def test_a_checkpoint_from_another_history_is_refused(path: Path) -> None:
    WriteAhead(path, ()).append(leaf(0))
    with pytest.raises(Refused, match="step 0"):
        WriteAhead(path, (leaf(0, rows=1),))


def test_a_line_that_a_crash_cut_short_is_dropped(path: Path) -> None:
    ahead = WriteAhead(path, ())
    ahead.append(leaf(0))
    ahead.append(leaf(1))
    path.write_bytes(path.read_bytes()[:-7])
    resumed = WriteAhead(path, (leaf(0),))
    resumed.append(leaf(1))
    assert read_leaves(path.read_bytes()) == (leaf(0), leaf(1))


def test_gradient_norms_stand_behind_their_step(path: Path) -> None:
    ahead = WriteAhead(path, ())
    ahead.append(leaf(0), norms(0))
    ahead.append(leaf(1))
    expected = (leaf(0), norms(0), leaf(1))
    assert read_leaves(path.read_bytes()) == expected
    assert tuple(ahead.leaves) == expected
    resumed = WriteAhead(path, expected)
    resumed.append(leaf(2), norms(2))
    assert read_leaves(path.read_bytes()) == (*expected, leaf(2), norms(2))
    assert tuple(resumed.leaves) == (*expected, leaf(2), norms(2))


def test_a_repeated_step_may_measure_otherwise_and_its_own_norms_go_on(path: Path) -> None:
    """After a resize the pieces are others; on some devices so are the last bits."""
    WriteAhead(path, ()).append(leaf(0), norms(0))
    before = path.read_bytes()
    again = WriteAhead(path, ())
    again.append(leaf(0, world=4), norms(0, square=0.25, rank=3))
    assert again.leaves == [leaf(0, world=4), norms(0, square=0.25, rank=3)]
    assert path.read_bytes() == before
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
