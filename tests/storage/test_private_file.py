"""A secret's file is read where its owner alone can reach it."""

from __future__ import annotations

from pathlib import Path

import pytest

from govray.storage.private_file import OpenToOthers, read_private


def secret(folder: Path, mode: int) -> Path:
    path = folder / "secret"
    path.write_bytes(b"0123456789")
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_its_owner_reads_no_more_than_the_limit(tmp_path: Path, mode: int) -> None:
    assert read_private(secret(tmp_path, mode), 4) == b"0123"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_a_file_that_others_can_reach_is_not_read(tmp_path: Path, mode: int) -> None:
    with pytest.raises(OpenToOthers) as caught:
        read_private(secret(tmp_path, mode), 4)
    assert caught.value.mode == mode


def test_a_link_has_the_permissions_of_what_it_leads_to(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(secret(tmp_path, 0o644))
    with pytest.raises(OpenToOthers):
        read_private(link, 4)
