"""An archive that comes in pieces has its name when it is whole, and not before."""

from __future__ import annotations

import io
import os
import time
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from govray.errors import Malformed, Refused, UsageError
from govray.governance.formats import canonical_json
from govray.governance.submission import code_archive
from govray.governance.submission.code_archive import (
    archive_place,
    check_archive,
    open_archive,
    packed,
)
from govray.governance.submission.received_archive import (
    LEFT_SECONDS,
    delete_left,
    kept_bytes,
    receive,
)
from govray.storage.zip_entry import zip_entry


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_bytes(b"print()\n")
    return packed(tmp_path / "work")


def test_it_has_its_name_at_the_end_alone(tmp_path: Path, data: bytes) -> None:
    digest = canonical_json.sha256(data)
    with closing(receive(tmp_path, digest)) as received:
        received.add(data[:40])
        received.add(data[40:])
        received.check()
        assert kept_bytes(tmp_path, digest) is None
        assert not archive_place(tmp_path, digest).exists()
        received.keep()
    assert kept_bytes(tmp_path, digest) == len(data)
    assert packed(open_archive(tmp_path, digest, tmp_path / "out")) == data
    assert [each.name for each in (tmp_path / "code").iterdir()] == [f"{digest[7:]}.zip"]
    archive_place(tmp_path, digest).write_bytes(data + b"\0")
    assert kept_bytes(tmp_path, digest) is None


@pytest.mark.parametrize(
    "name",
    [
        ".git/config",
        "deep/.GIT/hooks/post-checkout",
        ".git ./config",
        "govray.db",
        "a/govray.db.key",
    ],
)
def test_what_would_not_be_packed_is_not_received(tmp_path: Path, name: str) -> None:
    """A hook or a setting in ``.git`` would run code at somebody's next ``git status``."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zip_entry(name, executable=False), b"[core]\n")
    with pytest.raises(Malformed, match="belongs into no archive"):
        check_archive(made, "sent")


def test_what_is_closed_early_leaves_nothing(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(receive(tmp_path, canonical_json.sha256(data))) as received:
        received.add(data[:-1])
        with pytest.raises(Malformed, match="not what has the digest"):
            received.check()
    monkeypatch.setattr(code_archive, "LARGEST", 0)
    monkeypatch.setattr(code_archive, "MOST", 0)
    with (
        closing(receive(tmp_path, canonical_json.sha256(data))) as received,
        pytest.raises(Refused, match="at most 0 bytes"),
    ):
        received.add(data)
    assert list((tmp_path / "code").iterdir()) == []
    with pytest.raises(UsageError, match="no digest"):
        receive(tmp_path, "sha256:../../x")


def test_what_a_kill_left_is_deleted_once_it_is_old(tmp_path: Path, data: bytes) -> None:
    """Another's that still comes, and what has another name, stay."""
    digest = canonical_json.sha256(data)
    killed = receive(tmp_path, f"sha256:{'1' * 64}")
    coming = receive(tmp_path, f"sha256:{'2' * 64}")
    old = time.time() - LEFT_SECONDS - 60
    for each in (killed, coming):
        each.add(data)
    [left] = (tmp_path / "code").glob(f".{'1' * 48}.*.tmp")
    foreign = tmp_path / "code" / ".foreign.tmp"
    kept = archive_place(tmp_path, digest)
    for path in (left, foreign, kept):
        path.write_bytes(data)
        os.utime(path, (old, old))
    with closing(receive(tmp_path, digest)):
        assert not left.exists()
        assert len(list((tmp_path / "code").glob(f".{'2' * 48}.*.tmp"))) == 1
    assert foreign.exists()
    assert kept_bytes(tmp_path, digest) == len(data)
    delete_left(tmp_path / "code", now=time.time() + LEFT_SECONDS + 60)
    assert {each.name for each in (tmp_path / "code").iterdir()} == {foreign.name, kept.name}
    killed.close()
    coming.close()
