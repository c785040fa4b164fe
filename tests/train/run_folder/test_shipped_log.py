"""Output that outlives its process: whole lines, bounded, without secrets, and never in the way."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from govray.platform.store import run_logs
from govray.printable import HIDDEN
from govray.train.run_folder import shipped_log
from govray.train.run_folder.shipped_log import CUT, ShippedLog

NAME = "rank-0-1.log"


def shipped(run: Path) -> list[str]:
    return (run / "logs" / NAME).read_text().splitlines()


def ship(run: Path, text: bytes, **more: object) -> list[str]:
    source = run / "out"
    source.write_bytes(text)
    with ShippedLog(run, NAME, [(str(source), 0)], **more):  # type: ignore[arg-type]
        pass
    return shipped(run)


def test_lines_arrive_while_the_process_goes_on(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_text("old\n")
    err.write_text("")
    seen: list[str] = []
    sources = [(str(out), 4), (str(err), 0)]
    with ShippedLog(tmp_path, NAME, sources, on_line=seen.append, poll=0.02) as log:
        with out.open("a") as more:
            more.write("first\nhal")
            more.flush()
            for _ in range(3000):
                if (tmp_path / "logs" / NAME).is_file() and shipped(tmp_path):
                    break
                time.sleep(0.01)
            assert shipped(tmp_path) == seen == ["first"]
            more.write("f\nlast without an end")
        err.write_text("an error\n")
        log.write("Traceback\n  File")
    assert sorted(shipped(tmp_path)) == sorted(
        ["first", "half", "an error", "Traceback", "  File", "last without an end"]
    )
    assert sorted(seen) == sorted(shipped(tmp_path))


KEY = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2Vw\nMORE\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("a \x1b[31mred\x1b[0m line", ["a \\x1b[31mred\\x1b[0m line"]),
        ("10%\r20%\r30%", ["30%"]),
        ("token govr_0123456789ab_abc here", ["token [cut] here"]),
        ("cookie govs_0123456789ab_a-c; path=/", ["cookie [cut]; path=/"]),
        ("token=govr_0123456789ab_-a-c", ["token=[cut]"]),
        ("Authorization: Bearer abc.def", ["Authorization: [cut]"]),
        ("whsec_" + "A" * 44, ["[cut]"]),
        (f"{KEY}\nafter", [HIDDEN, "after"]),
        ("x" * 9000 + "\nnext", ["x" * shipped_log.LONGEST_LINE + "…", "next"]),
        ("", [""]),
        ("no end", ["no end"]),
    ],
)
def test_a_line_is_one_that_may_be_shown(tmp_path: Path, line: str, kept: list[str]) -> None:
    end = "" if line == "no end" else "\n"
    assert ship(tmp_path, f"{line}{end}".encode()) == kept


def test_without_the_filter_a_token_would_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShippedLog, "_clean", lambda _self, line: line)
    assert ship(tmp_path, b"token govr_0123\n") == ["token govr_0123"]


def test_a_log_is_bounded_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_log, "MOST_BYTES", 1000)
    seen: list[str] = []
    lines = ship(tmp_path, b"0123456789\n" * 10_000, on_line=seen.append)
    assert lines[-1] == CUT
    assert set(lines[:-1]) == {"0123456789"}
    assert len(lines) == 1000 // 11 + 1
    assert len(seen) == 10_000  # a policy goes on looking


def test_storage_that_refuses_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    source = tmp_path / "out"
    source.write_text("line\n")
    with ShippedLog(tmp_path, NAME, [(str(source), 0)]):
        pass
    assert (tmp_path / "logs").is_file()


def test_a_process_ships_its_own_output_and_not_that_of_a_terminal(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from govray.train.run_folder.shipped_log import ShippedLog, outputs\n"
        "print('before', flush=True)\n"
        f"with ShippedLog(Path({str(tmp_path)!r}), {NAME!r}, outputs(from_now=FROM)):\n"
        "    print('to out'); print('to err', file=sys.stderr)\n"
    )
    for from_now, expected in (("True", []), ("False", ["before"])):
        with (tmp_path / "both").open("w") as both:
            subprocess.run(
                [sys.executable, "-c", program.replace("FROM", from_now)],
                stdout=both,
                stderr=both,
                check=True,
                timeout=60,
            )
        assert sorted(shipped(tmp_path)) == sorted([*expected, "to err", "to out"])
        (tmp_path / "logs" / NAME).unlink()
    subprocess.run(
        [sys.executable, "-c", program.replace("FROM", "False")],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert run_logs.listed(str(tmp_path)) == []
