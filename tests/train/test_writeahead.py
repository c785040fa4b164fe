"""Write-ahead leaves: what was recorded once is repeated or the run stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from leaves import leaf

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
