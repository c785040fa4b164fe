"""Logs of a run, read by parts: what the folder's writer did to it leads nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from govray.platform.store import run_logs
from govray.platform.store.run_logs import KeptLog, listed, read

NAME = "rank-0-1.log"


def kept(run: Path, text: str, name: str = NAME) -> str:
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs" / name).write_text(text)
    return str(run)


def texts(part: run_logs.LogPart | None) -> list[str]:
    assert part is not None
    return [line.text for line in part.lines]


def test_logs_are_listed_drivers_first_and_then_by_attempt(tmp_path: Path) -> None:
    names = ["driver-2.log", "driver-10.log", "rank-1-1.log", "rank-0-2.log", "rank-0-11.log"]
    for name in [*names, "notes.txt", "rank-a-1.log"]:
        kept(tmp_path, "12345\n", name)
    assert listed(str(tmp_path)) == [KeptLog(name, 6) for name in names]
    assert listed(str(tmp_path / "none")) == []
    assert listed("s3://") == []


def test_a_log_is_read_from_its_end_and_on_from_there(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(100)]
    run = kept(tmp_path, "\n".join(lines) + "\nbeing writ")
    part = read(run, NAME, start=None, most=3)
    assert texts(part) == lines[-3:]
    assert part is not None
    assert part.size - part.next == len("being writ")
    with (tmp_path / "logs" / NAME).open("a") as more:
        more.write("ten\nmore\n")
    following = read(run, NAME, start=part.next, most=10)
    assert texts(following) == ["being written", "more"]
    assert following is not None
    assert following.next == following.size


def test_a_search_goes_on_behind_what_it_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_logs, "MOST_BYTES", 256)
    monkeypatch.setattr(run_logs, "MOST_SEARCHED", 512)
    lines = [f"line {number:04}" for number in range(200)] + ["CUDA out of memory (a.*b)"]
    run, at, found, reads = kept(tmp_path, "\n".join(lines) + "\n"), 0, [], 0
    while True:
        part = read(run, NAME, start=at, most=10, search="out OF memory (a.*")
        assert part is not None
        reads += 1
        found += texts(part)
        if part.next == part.size:
            break
        assert part.next > at
        at = part.next
    assert found == lines[-1:]
    assert reads > 2
    assert texts(read(run, NAME, start=None, most=3, search="line")) == lines[:3]


def test_a_link_in_the_folder_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root:x:0:0\n")
    run = tmp_path / "run"
    run.mkdir()
    kept(run, "line\n")
    (run / "logs" / "rank-1-1.log").symlink_to(tmp_path / "secret")
    os.mkfifo(run / "logs" / "rank-2-1.log")
    assert [each.name for each in listed(str(run))] == [NAME]
    assert read(str(run), "rank-1-1.log", start=0, most=5) is None
    assert read(str(run), "rank-2-1.log", start=0, most=5) is None
    # Negative control: the link is a file with that name, and leads there.
    assert (run / "logs" / "rank-1-1.log").read_text() == "root:x:0:0\n"
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    (elsewhere / "logs").symlink_to(run / "logs")
    assert listed(str(elsewhere)) == []
    assert read(str(elsewhere), NAME, start=0, most=5) is None
