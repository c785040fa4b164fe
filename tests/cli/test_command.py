"""The frame of the command: exit codes, one-paragraph errors, JSON, suggestions, start-up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

from govray import cli
from govray.cli import error_report, user_files
from govray.errors import GovrayError
from govray.extras import EXTRAS
from tests.support.command import Run
from tests.support.tree import ROOT

GOVRAY = [sys.executable, "-c", "import sys; from govray.cli import main; sys.exit(main())"]


def test_a_result_is_one_json_document_or_text_wherever_the_option_stands(run: Run) -> None:
    after = json.loads(run("keys", "new", "after.pem", "--json").out)
    before = json.loads(run("--json", "keys", "new", "before.pem").out)
    assert set(after) == set(before) == {"privateKey", "publicKey", "algorithm", "keyid"}
    text = run("keys", "new", "text.pem").out
    assert text.startswith("New ed25519 key ")
    assert "{" not in text
    assert run("schema", "policy", "--json").out == (schema := run("schema", "policy").out)
    assert schema.endswith("}\n")
    assert json.loads(schema)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["verfy", "x"], "Did you mean 'verify'?"),
        (["policy", "lnt", "x"], "Did you mean 'govray policy lint'?"),
        (["lint", "x"], "Did you mean 'policy lint'?"),
        (
            ["new", "x"],
            "Did you mean 'keys new' or 'workspace new' or 'project new' or 'token new'?",
        ),
        (["verify", "x", "--trust-rot", "y"], "--trust-root"),
        (["keys"], "Missing command"),
        (["show"], "Missing argument"),
        (["schema", "credental"], "'credential'"),
        (["keys", "new", "k", "--algorithm", "rsa"], "'--algorithm': 'rsa' is not one of"),
        (["show", "missing.json"], "missing.json: no such file"),
        (["show", "."], "model folder"),
        (["sign", "."], "this is a folder"),
        (["verify", "missing"], "no such file or folder"),
        (["trace", "missing", "--model", "."], "cannot be read"),
        (["trace", ".", "--model", "."], "this is a folder"),
        (["verify", ".", "--at", "yesterday"], "--at: 'yesterday' is not a time"),
        (["corpus", "ls", "missing"], "not a folder"),
        (["runs", "ls", "missing"], "missing: there is no such folder"),
        (["runs", "tensorboard", "--storage", "missing"], "missing: there is no such folder"),
        (["runs", "hold", "missing", "--for", "c"], "missing: there is no such folder"),
        (["train", "."], ".: this is a folder. Name an experiment file in it."),
        (["keys", "new", "/dev/null/key.pem"], "/dev/null"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_user_can_mend_is_usage(run: Run, words: list[str], said: str) -> None:
    done = run(*words, code=2)
    assert said in done.err
    assert done.out == ""


def test_json_asked_for_is_json_given_even_for_an_error(run: Run) -> None:
    done = run("show", "missing.json", "--json", code=2)
    assert done.json == {
        "error": {
            "kind": "UsageError",
            "what": "no such file",
            "where": "missing.json",
            "do": "Check the path.",
            "exitCode": 2,
        }
    }
    assert "no such file" in done.err


@pytest.mark.parametrize("words", [["--debug", "show", "missing"], ["show", "missing", "--debug"]])
def test_debug_shows_the_traceback_before_and_after_the_verb(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    first, *inner, error, said = capsys.readouterr().err.splitlines()
    assert first.startswith("Traceback")
    # A line of an error's own can't begin where ours do.
    assert all(each.startswith("  ") for each in [*inner, error])
    assert error.endswith("UsageError: missing: no such file. Check the path.")
    assert said == "govray: missing: no such file. Check the path."


def test_a_bug_is_called_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> bytes:
        raise RuntimeError("the wheels came off")

    monkeypatch.setattr(user_files, "read", broken)
    done = run("show", "x.json", code=70)
    assert "the wheels came off" in done.err
    assert "bug" in done.err
    assert "--debug" in done.err


@pytest.mark.parametrize("module", sorted(EXTRAS))
def test_a_missing_extra_is_named(module: str) -> None:
    error = ModuleNotFoundError(f"No module named '{module}.sub'", name=f"{module}.sub")
    found = error_report.describe(error)
    assert found.exit_code == 3
    assert found.do == f"Run pip install 'govray[{EXTRAS[module]}]'."


def test_extras_are_those_of_the_project_and_every_hint_is_of_one_function() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*EXTRAS.values()} <= {*project["optional-dependencies"]}
    told = re.compile(r"pip install (?!--|-e)['.]")
    found = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "govray").rglob("*.py")
        if told.search(path.read_text())
    ]
    # The pack's page speaks of the source tree, where the pack's maker has to be.
    assert sorted(found) == ["govray/evidence/packs/evidence_pack.py", "govray/extras.py"]


def test_a_full_disk_is_said_and_the_old_file_stays(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    user_files.write(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GovrayError, match="No space left"):
        user_files.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert "No space left" in run("keys", "new", "key.pem", code=2).err
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def cpu_seconds(*command: str) -> float:
    """Processor time of a process, not the wall's: other tests share the machine."""
    before = os.times()
    subprocess.run([*command], capture_output=True, check=True, timeout=60)
    after = os.times()
    used = after.children_user + after.children_system
    return used - before.children_user - before.children_system


def test_start_up_is_quick() -> None:
    """Beside what it prints with, it imports next to nothing: no pydantic, no cryptography."""
    prints_with = "import typer.main, rich.console, rich.table, rich.text"
    pairs = [
        (cpu_seconds(*GOVRAY, "--help"), cpu_seconds(sys.executable, "-c", prints_with))
        for _ in range(6)
    ]
    # Of all: one process is a few ticks of the clock.
    assert sum(ours for ours, _ in pairs) < 3 * sum(theirs for _, theirs in pairs), pairs


def cpu_ticks(pid: int) -> int:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.parametrize("missing", ["key", "trust root"])
def test_what_is_missing_is_said_before_ray_is_imported(
    run: Run, tmp_path: Path, missing: str
) -> None:
    run("init", tmp_path / "deployment")
    run("keys", "new", "key.pem")
    key = "" if missing == "key" else str(tmp_path / "key.pem")
    words = "import sys; from govray.cli import main; code = main(['train', 'jobs/train.yaml'])"
    done = subprocess.run(
        [sys.executable, "-c", f"{words}; assert 'ray' not in sys.modules; sys.exit(code)"],
        cwd=tmp_path / "deployment",
        env={**os.environ, "GOVRAY_KEY": key},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    if missing == "key":
        assert "env:GOVRAY_KEY: the environment variable GOVRAY_KEY is not set" in done.stderr
    else:
        assert "policies/root.json: no trust root here" in done.stderr
        assert "Make it with `govray sign policies/root.yaml`" in done.stderr


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["govray", "adap"], ["adapter"]),
        (["govray", "adapter", "remove", "--k"], ["--key"]),
        (["govray", "experiments", "show", "s-"], []),  # no service is named
    ],
)
def test_bash_completes_a_line(words: list[str], found: list[str]) -> None:
    line = f'''eval "$(govray completion bash)"; COMP_WORDS=("$@") COMP_CWORD={len(words) - 1}
        _govray_completion govray; echo "${{COMPREPLY[@]}}"'''
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "GOVRAY_SERVER": ""}
    done = subprocess.run(
        ["bash", "-c", line, "bash", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.split(), done.stderr) == (found, "")


def test_interrupted() -> None:
    fifo = Path("fifo")
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [*GOVRAY, "show", str(fifo)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has them ignore it, and so their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    # The command waits for a writer, then for what it writes: the signal finds it at work,
    # and not in the middle of an import.
    with fifo.open("w"):
        used = -1
        while used != (used := cpu_ticks(process.pid)):
            time.sleep(1.0)
        out = err = ""
        # Python drops an interrupt that meets a finalizer; people press the keys again.
        for _ in range(6):
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                out, err = process.communicate(timeout=10)
                break
    assert process.returncode == 130
    assert err.strip() == "govray: interrupted"
    assert out == ""


@pytest.mark.parametrize("words", [("schema", "policy"), ("runs", "ls")])
def test_a_reader_that_goes_away_is_no_error(words: tuple[str, ...]) -> None:
    process = subprocess.Popen([*GOVRAY, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as stderr:
        assert stderr.read() == b""
    assert process.wait(timeout=60) == 141
