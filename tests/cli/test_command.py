"""The frame of the command: exit codes, one-paragraph errors, JSON, suggestions, start-up."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import jsonschema
import pytest

from govray import cli
from govray.cli import error_report, user_files
from govray.cli.init import deployment
from govray.errors import GovrayError
from govray.governance.formats.strict_yaml import read_yaml
from govray.printable import printable
from tests.support.command import Run
from tests.support.in_time import in_time
from tests.support.runs_on_storage import finished_run
from tests.support.world import POLICY, World

GOVRAY = [sys.executable, "-c", "import sys; from govray.cli import main; sys.exit(main())"]


def test_version_names_versions(run: Run) -> None:
    out = run("--version").out
    assert out.startswith("govray 0.")
    assert "Python 3." in out
    assert "pydantic 2." in out


def test_without_words_it_shows_the_verbs(run: Run) -> None:
    out = run().out
    assert out == run("--help").out
    verbs = "demo init keys corpus sign show verify policy train runs replay attest trace adapter"
    for verb in [*verbs.split(), "schema"]:
        assert f"\n  {verb} " in out


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
        (["policy", "lnt", "x"], "Did you mean 'lint'?"),
        (["lint", "x"], "Did you mean 'policy lint'?"),
        (
            ["new", "x"],
            "Did you mean 'keys new' or 'token new' or 'workspace new' or 'project new'?",
        ),
        (["verify", "x", "--trust-rot", "y"], "--trust-root"),
        (["keys"], "Missing command"),
        (["show"], "Missing argument"),
        (["schema", "credental"], "'credential'"),
        (["keys", "new", "k", "--algorithm", "rsa"], "ecdsa-p256"),
        (["show", "missing.json"], "missing.json: no such file"),
        (["show", "."], "model folder"),
        (["sign", "."], "this is a folder"),
        (["sign", "missing.yaml"], "missing.yaml: no such file"),
        (["verify", "missing"], "no such file or folder"),
        (["policy", "lint", "missing.yaml"], "no such file"),
        (["policy", "lint", "."], "this is a folder"),
        (["trace", "missing", "--model", "."], "cannot be read"),
        (["trace", ".", "--model", "."], "this is a folder"),
        (["verify", ".", "--at", "yesterday"], "--at: 'yesterday' is not a time"),
        (["corpus", "ls", "missing"], "not a folder"),
        (["runs", "ls", "missing"], "missing: there is no such folder"),
        (["tensorboard", "--storage", "missing"], "missing: there is no such folder"),
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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "JSON"),
        (b"", ""),
        (b"\xff\xfe", "UTF-8"),
        (b'{"a":1,"a":2}', "twice"),
        (b"[]", "object"),
        (b"null", "object"),
    ],
    ids=["cut off", "empty", "not text", "duplicate key", "a list", "null"],
)
def test_bytes_that_are_no_envelope_are_refused(
    run: Run, tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "x.json").write_bytes(content)
    done = run("show", "x.json", code=1)
    assert "x.json" in done.err
    assert said in done.err


def test_before_the_first_run_the_listing_says_how_to_start_one(run: Run) -> None:
    assert run("runs", "ls").out == "No run lies below runs. Start one: govray train FILE\n"
    assert run("runs", "ls", "--json").json == []
    assert run("runs", "ls", ".").out.startswith("No run lies below this folder. ")


@pytest.mark.parametrize("content", [b"{}", b"{ }", b'{"run":', b"\xff", b"[]"])
def test_a_run_that_cannot_be_read_hides_no_other(
    run: Run, world: World, tmp_path: Path, content: bytes
) -> None:
    for name in ("tiny-1", "tiny-2"):
        finished_run(tmp_path / "runs", name, world)
    summary = tmp_path / "runs" / "tiny-1" / "record" / "run.json"
    summary.write_bytes(content)
    said = run("runs", "ls", "runs").out
    assert "tiny-1: runs/tiny-1/record/run.json: " in said
    assert "tiny-2  attested" in said
    listed = run("runs", "ls", "runs", "--json").json
    assert [(each["run"], each["state"]) for each in listed] == [
        ("tiny-2", "attested"), ("tiny-1", "damaged"),
    ]  # fmt: skip
    assert "runs/tiny-1/record/run.json: " in run("runs", "show", "runs/tiny-1", code=1).err


@pytest.mark.parametrize("break_it", [Path.unlink, lambda path: (path.unlink(), os.mkfifo(path))])
def test_nor_does_one_whose_record_is_no_file(
    run: Run, world: World, tmp_path: Path, break_it: Callable[[Path], object]
) -> None:
    for name in ("tiny-1", "tiny-2"):
        finished_run(tmp_path / "runs", name, world)
    break_it(tmp_path / "runs" / "tiny-1" / "record" / "root.json")
    with in_time(60):
        said = run("runs", "ls", "runs").out
        shown = run("runs", "show", "runs/tiny-1", code=2).err
    assert "tiny-2  attested" in said
    assert "root.json" in said
    assert "root.json" in shown
    assert "bug" not in shown


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


def test_after_a_double_dash_debug_is_a_name(run: Run) -> None:
    assert "--debug: no such file" in run("show", "--", "--debug", code=2).err


def test_a_bug_is_called_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> bytes:
        raise RuntimeError("the wheels came off")

    monkeypatch.setattr(user_files, "read", broken)
    done = run("show", "x.json", code=70)
    assert "the wheels came off" in done.err
    assert "bug" in done.err
    assert "--debug" in done.err


@pytest.mark.parametrize("module", sorted(error_report.EXTRAS))
def test_a_missing_extra_is_named(module: str) -> None:
    error = ModuleNotFoundError(f"No module named '{module}.sub'", name=f"{module}.sub")
    found = error_report.describe(error)
    assert found.exit_code == 3
    assert f"govray[{error_report.EXTRAS[module]}]" in (found.do or "")


def test_a_verb_without_its_extra_could_not_check(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "govray.data.corpus", raising=False)
    monkeypatch.delattr(importlib.import_module("govray.data"), "corpus", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = run("corpus", "ls", ".", code=3)
    assert "pip install 'govray[train]'" in done.err


def test_our_own_missing_module_is_a_bug_not_an_extra() -> None:
    assert error_report.describe(ModuleNotFoundError("x", name="govray.nothing")).exit_code == 70


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
    assert min(ours for ours, _ in pairs) < 3 * min(theirs for _, theirs in pairs), pairs


def cpu_ticks(pid: int) -> int:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


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


@pytest.mark.parametrize("kind", ["experiment", "policy", "credential"])
def test_schemas_are_closed(run: Run, kind: str) -> None:
    schema = run("schema", kind).json
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False
    assert "null" not in json.dumps(schema) or kind == "experiment"


CREDENTIAL = """
schema_version: v1
corpus: notes
license: MIT
license_category: permissive
use: commercial
jurisdiction: DE
sensitivity: public
valid: {from: "2026-01-01", until: "2027-01-01T00:00:00Z"}
issuer: archive
records: {root: "sha256:%s", count: "3", commitment: "sha256:%s"}
"""


@pytest.mark.parametrize(
    ("kind", "source", "slip"),
    [
        ("policy", POLICY, ("profiles:", "profile:")),
        ("policy", POLICY, ("layers: all", "layers: some")),
        ("policy", POLICY, ("[permissive]", "[permisive]")),
        ("policy", POLICY.replace("[permissive]", "permissive"), ("schema:", "scheme:")),
        ("credential", CREDENTIAL % ("ab" * 32, "cd" * 32), ("until:", "to:")),
        ("credential", CREDENTIAL % ("ab" * 32, "cd" * 32), ("public", "secret")),
    ],
)
def test_a_schema_accepts_sources_and_sees_a_slip(
    run: Run, tmp_path: Path, kind: str, source: str, slip: tuple[str, str]
) -> None:
    validator = jsonschema.Draft202012Validator(run("schema", kind).json)
    run("keys", "new", "key.pem")
    path = tmp_path / "source.yaml"
    for text, fine in ((source, True), (source.replace(*slip), False)):
        assert validator.is_valid(read_yaml(text, name="source").value) is fine
        path.write_text(text)
        run("sign", path, "--key", "key.pem", code=0 if fine else 1)


def test_the_deployment_s_policies_fit_the_schema(run: Run) -> None:
    validator = jsonschema.Draft202012Validator(run("schema", "policy").json)
    sources = {path.name: path for path in (deployment() / "policies").glob("*.yaml")}
    sources.pop("promotion.yaml")  # the gates of the registry, another kind of document
    assert sources
    for name, path in sources.items():
        validator.validate(read_yaml(path.read_bytes(), name=name).value)


def test_options_take_the_values_of_the_credential_class() -> None:
    classes = importlib.import_module("govray.cli.credential_options")
    spdx = importlib.import_module("govray.governance.trust.license")
    authority = importlib.import_module("govray.governance.trust.authority")
    assert classes.LicenseCategory == spdx.LicenseCategory
    assert classes.Use == spdx.Use
    assert classes.Sensitivity == authority.Sensitivity
    described = importlib.import_module("govray.governance.policy.corpus_description")
    for name in ("Source", "OptOut", "PersonalData"):
        assert getattr(classes, name) == getattr(described, name)


def test_control_characters_are_shown_not_obeyed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "corpora" / "a").mkdir(parents=True)
    done = run("corpus", "ls", "corpora")
    assert "missing" in done.out
    assert printable("a\x1b[31mb\u202ec\n") == "a\\x1b[31mb\\u202ec\\n"
