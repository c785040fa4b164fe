"""A real disk that is full after every possible page: a tmpfs of a few kilobytes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from govray.errors import UsageError
from govray.train.checkpoint.commit_folder import commit, load

PAGE_KB = 4
FILES = {"weights": b"w" * 20_000, "state/plan.json": b"{}", "optimizer": b"o" * 9_000}

Resize = Callable[[int], None]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, Resize]]:
    """An empty disk, and what gives it another size in kilobytes."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={PAGE_KB}k", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this user may not mount: {mounted.stderr.strip()}")

    def resize(kilobytes: int) -> None:
        options = f"remount,size={kilobytes}k"
        subprocess.run(["mount", "-o", options, str(place)], check=True)

    yield place, resize
    subprocess.run(["umount", str(place)], check=True)


def refusal(folder: Path) -> UsageError | None:
    try:
        commit(folder, FILES)
    except UsageError as error:
        return error
    return None


def test_wherever_the_disk_is_full_nothing_is_left_and_the_commit_before_stays(
    disk: tuple[Path, Resize],
) -> None:
    place, resize = disk
    resize(256)
    before = commit(place / "before", FILES)
    used = sum(-(-path.stat().st_size // 4096) for path in place.rglob("*") if path.is_file())
    refused = 0
    for pages in range(used, 64):
        resize(pages * PAGE_KB)
        error = refusal(place / "next")
        if error is None:
            break
        assert "No space left" in str(error)
        assert sorted(each.name for each in place.iterdir()) == ["before"]
        assert load(place / "before").digest == before
        refused += 1
    # From no room at all to one page less than it takes.
    assert refused >= 9
    assert load(place / "next").files.keys() == FILES.keys()
