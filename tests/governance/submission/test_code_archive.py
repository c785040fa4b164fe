"""Archives of working directories: equal bytes for equal folders, and nothing that leads out."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from govray.errors import CouldNotCheck, Damaged, Malformed, Refused, UsageError
from govray.governance.formats import canonical_json
from govray.governance.policy.record_commitment import SECRET_FILE
from govray.governance.submission import code_archive
from govray.governance.submission.code_archive import (
    archive_folder,
    archive_place,
    open_archive,
    packed,
)
from tests.support.zips import entry

FILES = {
    "jobs/train.py": b"print('hello')\n",
    "jobs/train.yaml": b"name: x\n",
    "model/ünder.py": b"",
    "tool.sh": b"#!/bin/sh\n",
}
LEFT_OUT = {
    ".git/HEAD": b"ref",
    "model/__pycache__/a.pyc": b"\0",
    "runs/one/record/run.json": b"{}",
    "govray.db": b"SQLite format 3\0",
    "govray.db-wal": b"",
    "govray.db.key": bytes(32),
    "deep/.hg/hgrc": b"[hooks]",
    "env/pyvenv.cfg": b"home = /usr",
    "env/bin/python": b"",
    "notes.log": b"of yesterday",
    "deep/build/out.bin": b"made",
    "big.bin": b"0",
}
IGNORES = {".gitignore": b"*.log\nbuild/\n", ".rayignore": b"/big.bin\n"}


def folder(at: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = at / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return at


def names(data: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(data)).namelist()


def test_equal_folders_have_equal_archives(tmp_path: Path) -> None:
    """Whatever order, time and place they were written in. The digest is a golden vector."""
    one = folder(tmp_path / "one", FILES)
    (one / "tool.sh").chmod(0o755)
    two = folder(tmp_path / "elsewhere" / "two", dict(reversed(FILES.items())))
    (two / "tool.sh").chmod(0o700)
    os.utime(two / "tool.sh", (1, 1))
    first = archive_folder(one, tmp_path / "runs")
    assert first == archive_folder(two, tmp_path / "runs")
    assert first == "sha256:e433b0576eedbea6f1b66d91660f3e57d0f43fb0e5f957d71db9e7afd52f8e86"
    (two / "tool.sh").write_bytes(b"#!/bin/bash\n")
    assert archive_folder(two, tmp_path / "runs") != first
    assert len(list((tmp_path / "runs" / "code").iterdir())) == 2


def test_what_a_job_does_not_need_is_left_out(tmp_path: Path) -> None:
    work = folder(tmp_path, FILES | LEFT_OUT)
    assert {*names(packed(work))} == {*FILES, "deep/build/out.bin", "notes.log", "big.bin"}
    folder(tmp_path, IGNORES)
    assert names(packed(work)) == sorted({*FILES, *IGNORES})


def test_an_archive_unpacks_as_it_was(tmp_path: Path) -> None:
    work = folder(tmp_path / "work", FILES)
    (work / "tool.sh").chmod(0o755)
    digest = archive_folder(work, tmp_path / "runs")
    into = open_archive(tmp_path / "runs", digest, tmp_path / "again")
    assert packed(into) == packed(work)
    assert os.access(into / "tool.sh", os.X_OK)
    with pytest.raises(UsageError, match="there already"):
        open_archive(tmp_path / "runs", digest, into)


def test_a_changed_archive_is_written_again_and_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = folder(tmp_path / "work", FILES)
    digest = archive_folder(work, tmp_path)
    kept = archive_place(tmp_path, digest)
    changed = kept.read_bytes().replace(b"hello", b"HELLO")
    kept.write_bytes(changed)
    with pytest.raises(Damaged, match="not the recorded one"):
        open_archive(tmp_path, digest, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    # The control: without the digest, other code would be unpacked under this name. zipfile's own
    # checksum stops a slip, not somebody who writes a checksum that fits.
    other = packed(folder(tmp_path / "other", {"jobs/train.py": b"evil\n"}))
    kept.write_bytes(other)
    with monkeypatch.context() as patch:
        patch.setattr(canonical_json, "sha256", lambda data: digest)
        open_archive(tmp_path, digest, tmp_path / "evil")
    assert (tmp_path / "evil" / "jobs" / "train.py").read_bytes() == b"evil\n"
    assert archive_folder(work, tmp_path) == digest
    open_archive(tmp_path, digest, tmp_path / "out")
    with pytest.raises(CouldNotCheck, match="not there"):
        open_archive(tmp_path, f"sha256:{'0' * 64}", tmp_path / "more")


PEM = b"-----BEGIN " + b"PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA\n"


@pytest.mark.parametrize(
    ("file", "content", "ignored", "says"),
    [
        ("deep/operator.txt", PEM, {".gitignore": b"operator.txt\n"}, "private key"),
        (
            f"data/corpora/notes/{SECRET_FILE}",
            b"s" * 32,
            {".rayignore": b"data/\n"},
            "corpus with its secret.*absolute path",
        ),
    ],
)
def test_a_key_or_a_secret_of_a_corpus_is_not_archived(
    tmp_path: Path, file: str, content: bytes, ignored: dict[str, bytes], says: str
) -> None:
    work = folder(tmp_path / "work", FILES | {file: content})
    with pytest.raises(Refused, match=says) as refused:
        archive_folder(work, tmp_path / "runs")
    assert str(refused.value.where) in str(work / file)
    assert not (tmp_path / "runs").exists()
    folder(work, ignored)  # the control: what stays here is no danger
    archive_folder(work, tmp_path / "runs")


def test_links_are_not_archived(tmp_path: Path) -> None:
    work = folder(tmp_path / "work", FILES)
    (work / "hosts").symlink_to("/etc/hosts")
    with pytest.raises(Refused, match="a link"):
        packed(work)
    folder(work, {".rayignore": b"hosts\n"})
    assert "hosts" not in names(packed(work))


@pytest.mark.parametrize(("limit", "value"), [("LARGEST", 20), ("MOST", 3)])
def test_a_large_folder_is_not_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    work = folder(tmp_path, FILES)
    packed(work)  # the control
    monkeypatch.setattr(code_archive, limit, value)
    with pytest.raises(Refused, match=r"train\.py"):
        packed(work)


def stored(fill: Callable[[zipfile.ZipFile], None]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        fill(archive)
    return out.getvalue()


HOSTILE = {
    "up": ([entry("../evil")], "leads out"),
    "root": ([entry("/etc/evil")], "leads out"),
    "drive": ([entry("C:evil")], "leads out"),
    "backslash": ([entry("a\\..\\..\\evil")], "leads out"),
    "long part": ([entry(f"a/{'b' * 256}")], "leads out"),
    "empty part": ([entry("a//b")], "leads out"),
    "file and folder": ([entry("a"), entry("a/b")], "leads out"),
    "twice": ([entry("a"), entry("a")], "twice"),
    "link": ([entry("a", stat.S_IFLNK | 0o777)], "a link"),
    "device": ([entry("a", stat.S_IFCHR | 0o644)], "a link or no file"),
    "folder": ([entry("a/")], "a link or no file"),
    "compressed": ([entry("a", compress_type=zipfile.ZIP_DEFLATED)], "compressed"),
}


@pytest.mark.parametrize("how", HOSTILE)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_what_no_archive_of_ours_holds_is_not_unpacked(tmp_path: Path, how: str) -> None:
    infos, why = HOSTILE[how]
    data = stored(
        lambda archive: [archive.writestr(each, b"/etc/hosts") for each in infos] and None
    )
    digest = canonical_json.sha256(data)
    archive_place(tmp_path, digest).parent.mkdir()
    archive_place(tmp_path, digest).write_bytes(data)
    with pytest.raises(Malformed, match=why):
        open_archive(tmp_path, digest, tmp_path / "deep" / "out")
    assert not (tmp_path / "deep" / "out").exists()
    assert not list(tmp_path.rglob("evil"))


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = stored(
        lambda archive: [archive.writestr(entry(f"{n}"), b"0123") for n in range(9)] and None
    )
    digest = canonical_json.sha256(data)
    archive_place(tmp_path, digest).parent.mkdir()
    archive_place(tmp_path, digest).write_bytes(data)
    for limit, value in (("LARGEST", 35), ("MOST", 8)):
        with monkeypatch.context() as patch:
            patch.setattr(code_archive, limit, value)
            patch.setattr(code_archive, "_OVERHEAD", 1 << 10)
            with pytest.raises(Malformed, match="more than"):
                open_archive(tmp_path, digest, tmp_path / "out")
    open_archive(tmp_path, digest, tmp_path / "out")  # the control
