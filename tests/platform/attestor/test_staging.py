"""A run's folder is copied once; whatever is no plain file of its own is refused."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from govray.errors import CouldNotCheck, GovrayError, Refused
from govray.platform.attestor import staging
from govray.platform.attestor.staging import Bounds, copy_once


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "record").mkdir(parents=True)
    (folder / "record" / "run.json").write_text("{}")
    (folder / "log").write_text("much")
    return folder


def wanted(name: str) -> bool:
    return name.startswith("record/")


def test_what_is_wanted_is_copied_and_nothing_else(run: Path, tmp_path: Path) -> None:
    size = copy_once(tmp_path, ["run"], tmp_path / "staged", wanted)

    copied = [path for path in (tmp_path / "staged").rglob("*") if path.is_file()]
    assert [path.name for path in copied] == ["run.json"]
    assert size == 2


def _link(place: Path, secret: Path) -> None:
    place.symlink_to(secret)


def _hard_link(place: Path, secret: Path) -> None:
    os.link(secret, place)


def _pipe(place: Path, secret: Path) -> None:
    os.mkfifo(place)


def _socket(place: Path, secret: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.open(place.parent, os.O_RDONLY)
        made.bind(f"/proc/self/fd/{here}/{place.name}")
        os.close(here)


def _linked_folder(place: Path, secret: Path) -> None:
    place.symlink_to(secret.parent)


def _odd_name(place: Path, secret: Path) -> None:
    (place.parent / "a\nb").write_text("x")


def _bytes_that_are_no_name(place: Path, secret: Path) -> None:
    (place.parent / os.fsdecode(b"a\xff")).write_text("x")


def _device(place: Path, secret: Path) -> None:
    os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # as /dev/zero, which has no end


def _deep(place: Path, secret: Path) -> None:
    folder = place / "/".join("abcdefghijkl")
    folder.mkdir(parents=True)
    (folder / "file").write_text("x")


@pytest.mark.parametrize(
    "plant",
    [
        *(_link, _hard_link, _pipe, _socket, _linked_folder, _odd_name, _deep),
        _bytes_that_are_no_name,
        pytest.param(
            _device, marks=pytest.mark.skipif(os.getuid() != 0, reason="root makes devices")
        ),
    ],
)
def test_a_planted_file_is_refused_and_its_bytes_are_not_taken(
    run: Path, tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    secret = tmp_path / "key"
    secret.write_text("the operator's")
    plant(run / "record" / "planted", secret)

    with pytest.raises(GovrayError) as refused:
        copy_once(tmp_path, ["run"], tmp_path / "staged", wanted)

    assert isinstance(refused.value, Refused)
    copied = [path for path in (tmp_path / "staged").rglob("*") if path.is_file()]
    assert all(b"operator" not in path.read_bytes() for path in copied)


def test_a_folder_that_is_a_link_is_not_opened(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)

    with pytest.raises(CouldNotCheck):
        copy_once(tmp_path, ["link"], tmp_path / "staged", wanted)


def test_a_search_s_folder_that_is_a_link_leads_to_no_other_run(run: Path, tmp_path: Path) -> None:
    (tmp_path / "search").symlink_to(tmp_path)

    with pytest.raises(CouldNotCheck):
        copy_once(tmp_path, ["search", "run"], tmp_path / "staged", wanted)


def test_bounds_end_a_copy(run: Path, tmp_path: Path) -> None:
    (run / "record" / "holes").touch()
    os.truncate(run / "record" / "holes", 1 << 40)
    with pytest.raises(Refused, match="bytes"):
        copy_once(tmp_path, ["run"], tmp_path / "one", wanted, Bounds(bytes=1 << 16))

    assert _bytes(tmp_path / "one") < 1 << 16  # and no hole was read
    (run / "record" / "holes").unlink()

    for each in range(8):
        (run / "record" / f"{each}").touch()
    with pytest.raises(Refused, match="more than 8"):
        copy_once(tmp_path, ["run"], tmp_path / "two", wanted, Bounds(bytes=1 << 50, files=4))


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("grows", [True, False])
def test_a_file_that_grows_is_copied_no_further(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grows: bool
) -> None:
    def opened(path: Path, mode: str) -> Any:
        if grows:  # it was opened before its copy was
            with (run / "record" / "run.json").open("a") as file:
                file.write("x" * (1 << 22))
        return open(path, mode)

    monkeypatch.setattr(staging, "open", opened, raising=False)
    if not grows:  # the control
        assert copy_once(tmp_path, ["run"], tmp_path / "staged", wanted) == 2
        return
    with pytest.raises(Refused, match="it grew while it was copied"):
        copy_once(tmp_path, ["run"], tmp_path / "staged", wanted)
    assert _bytes(tmp_path / "staged") <= 3
