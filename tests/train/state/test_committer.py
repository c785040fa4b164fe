"""Commits behind the training loop: the same bytes, one at a time, and failures that are told."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from govray.errors import GovrayError
from govray.train.checkpoint import commit_folder
from govray.train.run_folder import events
from govray.train.state import snapshot
from govray.train.state.snapshot import folder_name, generator_seed, latest
from tests.support.committing import Training
from tests.support.leaves import leaf


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Commits wait in their first write until the event is set."""
    release = threading.Event()
    write = commit_folder.write

    def waiting(*arguments: Any) -> Any:
        assert release.wait(30)
        return write(*arguments)

    monkeypatch.setattr(commit_folder, "write", waiting)
    return release


def test_the_bytes_are_those_of_a_synchronous_commit(tmp_path: Path, held: threading.Event) -> None:
    """Training goes on, and moves every tensor, while the commit is written."""
    behind, straight = Training(tmp_path / "behind"), Training(tmp_path / "straight")
    for training in (behind, straight):
        training.step()
    torch.manual_seed(5)
    captured = straight.state.capture(1, straight.order, [leaf(0)], loss=1.0)
    assert captured is not None
    torch.manual_seed(5)
    behind.begin(1)
    behind.step()
    torch.rand(7)
    held.set()
    digest = commit_folder.commit(tmp_path / "straight" / folder_name(1), captured.files())
    assert behind.commits.settle(None) == behind.folder / folder_name(1)
    assert commit_folder.load(behind.folder / folder_name(1)).digest == digest
    # When it became whole is in the event log: a file's time is its copier's.
    told = [each for each in events.read(behind.folder) if isinstance(each, events.Committed)]
    assert [(each.step, each.digest) for each in told] == [(1, digest)]
    # The control: a capture of the later state has other bytes.
    torch.manual_seed(5)
    later = behind.state.capture(1, behind.order, [leaf(0)], loss=1.0)
    assert later is not None
    assert commit_folder.commit(tmp_path / "later", later.files()) != digest


def test_the_loop_goes_on_while_one_is_in_flight_and_the_next_waits_for_it(
    tmp_path: Path, held: threading.Event
) -> None:
    training = Training(tmp_path)
    training.begin(1)
    assert latest(tmp_path) is None
    assert [entry.suffix for entry in tmp_path.glob("checkpoint_*")] in ([], [".partial"])
    second = threading.Thread(target=training.begin, args=(2,))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    held.set()
    second.join(30)
    assert latest(tmp_path) is not None
    training.commits.settle(None)
    assert latest(tmp_path) == (tmp_path / folder_name(2), 2)


def test_a_failure_is_told_and_no_other_commit_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(commit_folder.os, "fsync", full)
        training.begin(1)
        training.begin(2)  # the disk has room again only after this
    assert "step 1 could not be written" in str(training.commits.failure)
    training.begin(3)
    with pytest.raises(GovrayError, match=r"step 1 could not be written.*No space left"):
        training.commits.settle(None)
    assert list(tmp_path.glob("checkpoint_*")) == []


def test_after_a_resize_old_ranks_go_on_drawing_and_new_ones_begin_by_seed_step_and_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit holds rank 0 alone; ranks 1 and 2 are new, whatever they drew before."""
    training = Training(tmp_path)
    training.begin(1)
    folder = training.commits.settle(None)
    assert folder is not None
    after = draw()

    def drawn(rank: int, *, other: int) -> list[float]:
        monkeypatch.setattr(snapshot, "_rank", lambda: rank)
        torch.manual_seed(other)
        training.state.restore(folder, training.order)
        return draw()

    assert drawn(0, other=5) == after
    assert drawn(1, other=5) == drawn(1, other=6)
    assert drawn(1, other=5) != drawn(2, other=5)
    seeds = {generator_seed(*each) for each in [(0, 1, 1), (0, 1, 2), (0, 2, 1), (1, 1, 1)]}
    assert len(seeds) == 4


def draw() -> list[float]:
    return [float(torch.rand(1)), random.random(), float(np.random.rand())]
