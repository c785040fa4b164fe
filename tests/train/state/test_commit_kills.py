"""SIGKILL at any moment of committing and deleting: what loads is right, a resume ends alike."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from govray.errors import Damaged
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.retention import Rules
from govray.train.state import snapshot
from govray.train.state.snapshot import committed_folders, folder_name, latest
from tests.support.committing import Training
from tests.support.fork import KILLED, die, in_fork

STEPS = 10
RULES = Rules(best=1, latest=2)


def begin(folder: Path, resumed: int = 0) -> Training:
    """Python seeds its generator anew in a fork."""
    random.seed(5)
    return Training(folder, resumed=resumed, keep=RULES)


def a_step(training: Training) -> None:
    """Draws from the generator, so that its state matters."""
    training.optimizer.zero_grad(set_to_none=True)
    training.model(torch.rand(2, 4)).sum().backward()
    training.optimizer.step()


def loss_of(step: int) -> float:
    return abs(step - 4.2)  # the best is neither the first nor the last


def expected_digests(folder: Path) -> dict[int, str]:
    training = begin(folder)
    digests = {}
    for step in range(1, STEPS + 1):
        a_step(training)
        training.begin(step, loss=loss_of(step))
        training.commits.settle(None)
        digests[step] = commit_folder.load(folder / folder_name(step)).digest
    return digests


def attempt(folder: Path, calls: int | None = None) -> int:
    """The status of an attempt in a fork, which dies after so many calls to the disk."""

    def runs() -> None:
        left = iter(range(calls or 10**9))

        def mortal(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                if next(left, None) is None:
                    die()
                return real(*arguments, **named)

            return call

        for name in ("fsync", "rename", "unlink"):
            setattr(os, name, mortal(getattr(os, name)))
        found = latest(folder)
        start = found[1] if found else 0
        training = begin(folder, start)
        if found:
            training.state.restore(found[0], training.order)
        for step in range(start + 1, STEPS + 1):
            a_step(training)
            training.begin(step, loss=loss_of(step))
        training.commits.settle(None)

    return in_fork(runs)


def check(folder: Path, expected: dict[int, str]) -> int:
    """Every folder loads as in the undisturbed run, or not at all; returns the newest step."""
    newest = 0
    for step, found in committed_folders(folder):
        if (found / commit_folder.MANIFEST).exists():
            assert commit_folder.load(found).digest == expected[step]
            newest = max(newest, step)
        else:
            with pytest.raises(Damaged):
                commit_folder.load(found)
    return newest


def test_kills_at_any_moment(tmp_path: Path) -> None:
    expected = expected_digests(tmp_path / "undisturbed")
    run = tmp_path / "run"
    moments, newest, killed = random.Random(1), 0, 0
    for _ in range(12):
        code = attempt(run, moments.randint(1, 25))
        now = check(run, expected)
        assert now >= newest, "a commit that was there is gone, and no newer one came"
        newest = now
        killed += code == KILLED
    assert attempt(run) == 0
    assert killed > 3
    check(run, expected)
    stay = {step for step, found in committed_folders(run) if (found / "manifest.json").exists()}
    assert stay >= {STEPS - 1, STEPS} or stay >= {STEPS}
    assert latest(run) == (run / folder_name(STEPS), STEPS)


def test_the_control_a_deletion_that_began_with_the_files_is_caught(tmp_path: Path) -> None:
    """Were the manifest not the first to go, the check would see a commit that is not whole."""
    expected = expected_digests(tmp_path)
    assert check(tmp_path, expected) == STEPS
    (tmp_path / folder_name(STEPS) / "state.json").unlink()
    with pytest.raises(Damaged):
        check(tmp_path, expected)


def test_the_control_a_resume_without_its_generators_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = expected_digests(tmp_path / "undisturbed")
    run = tmp_path / "run"
    assert attempt(run, 40) == KILLED
    assert latest(run)
    monkeypatch.setattr(snapshot, "restore_generators", lambda state: None)
    assert attempt(run) == 0
    with pytest.raises(AssertionError):
        check(run, expected)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_whatever_happens_to_any_file_the_older_commit_is_next(tmp_path: Path, damage: str) -> None:
    expected = expected_digests(tmp_path)
    whole_one = commit_folder.load(tmp_path / folder_name(STEPS))
    names = [*sorted(whole_one.entries), commit_folder.MANIFEST]
    random_place = random.Random(7)
    older = (tmp_path / folder_name(STEPS - 1), STEPS - 1)
    for name in names:
        path = tmp_path / folder_name(STEPS) / name
        whole = path.read_bytes()
        if damage == "remove":
            path.unlink()
        elif damage == "cut":
            path.write_bytes(whole[: random_place.randrange(len(whole))])
        else:
            data = bytearray(whole)
            data[random_place.randrange(len(data))] ^= 1 << random_place.randrange(8)
            path.write_bytes(data)
        with pytest.raises(Damaged):
            commit_folder.load(tmp_path / folder_name(STEPS))
        found = latest(tmp_path)
        if found != older:
            # Only the bytes tell: the worker that loads it puts it aside.
            assert damage == "flip"
            training = begin(tmp_path, STEPS)
            with pytest.raises(Exception, match=f"put aside.*{name}"):
                training.state.restore(tmp_path / folder_name(STEPS), training.order)
            assert latest(tmp_path) == older
            [aside] = tmp_path.glob(f"*{snapshot.CORRUPT}")
            aside.rename(tmp_path / folder_name(STEPS))
        path.write_bytes(whole)
        assert commit_folder.load(tmp_path / folder_name(STEPS)).digest == expected[STEPS]
