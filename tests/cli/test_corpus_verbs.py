"""`corpus build` and `corpus ls`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from govray.governance.formats import merkle
from govray.governance.formats.canonical_json import sha256
from tests.support.command import Run

LICENSE = ("--license", "MIT", "--issuer", "archive", "--jurisdiction", "DE")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for name, text in {"b.txt": "two", "a.txt": "one"}.items():
        (folder / name).write_text(text)
    return folder


def test_the_root_is_over_the_files_in_order_of_their_names(run: Run, source: Path) -> None:
    told = run("corpus", "build", source, "--name", "notes", *LICENSE, "--json").json
    leaves = [bytes.fromhex(sha256(text)[7:]) for text in (b"one", b"two")]
    assert told["root"] == f"sha256:{merkle.root(leaves).hex()}"
    assert told["records"] == 2
    assert Path(told["credential"]).is_file()


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(contents=st.lists(st.binary(max_size=40), min_size=1, max_size=6))
def test_any_bytes_become_a_credential_that_can_be_signed(
    run: Run, tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    (folder / "source").mkdir()
    for i, content in enumerate(contents):
        (folder / "source" / f"{i}").write_bytes(content)
    out = folder / "corpora"
    built = run("corpus", "build", folder / "source", "--name", "c", *LICENSE, "--out", out)
    assert f"{len(contents)} records" in built.out
    run("keys", "new", folder / "key.pem")
    run("sign", out / "c" / "credential.yaml", "--key", folder / "key.pem")
    (row,) = run("corpus", "ls", out, "--json").json["corpora"]
    assert row["state"] == "signed"
    assert row["credential"]["records"]["count"] == str(len(contents))


def test_ls_tells_signed_unsigned_and_missing_apart(run: Run, source: Path, tmp_path: Path) -> None:
    run("keys", "new", "key.pem")
    for name in ("a", "b", "c"):
        run("corpus", "build", source, "--name", name, *LICENSE, "--out", "corpora")
    run("sign", "corpora/a/credential.yaml", "--key", "key.pem")
    (tmp_path / "corpora" / "c" / "credential.yaml").unlink()
    told = run("corpus", "ls", "corpora", "--json").json
    assert told["verified"] is False
    states = {row["corpus"]: row["state"] for row in told["corpora"]}
    assert states == {"a": "signed", "b": "unsigned", "c": "missing"}
    out = run("corpus", "ls", "corpora").out
    assert "permissive" in out
    assert "unsigned" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--name", "no/slash"], "not a corpus name"),
        (["--license", "BSD License"], "SPDX"),
        (["--license", "LicenseRef-x"], "licence category"),
        (["--license-category", "copyleft"], "licenseCategory"),
        (["--jurisdiction", "XX"], "XX"),
        (["--sensitivity", "secret"], "confidential"),
        (["--valid-from", "now"], "--valid-from"),
        (["--valid-from", "2026-01-01T00:00:00Z", "--valid-until", "2025-01-01T00:00:00Z"], "from"),
        (["--out", "/dev/null/corpora"], "/dev/null"),
    ],
)
def test_a_wrong_option_is_usage_and_leaves_nothing(
    run: Run, source: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    before = sorted(p.name for p in tmp_path.iterdir())
    base = ["--name", "notes", *LICENSE, "--out", "corpora"]
    done = run("corpus", "build", source, *base, *words, code=2)
    assert said in done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_corpus_without_licence_is_usage(run: Run, source: Path) -> None:
    words = ("--name", "notes", "--issuer", "archive", "--jurisdiction", "DE")
    assert "--license" in run("corpus", "build", source, *words, code=2).err


def test_an_empty_source_and_a_taken_name_are_usage(run: Run, source: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run("corpus", "build", "empty", "--name", "notes", *LICENSE, code=2)
    assert "no records" in done.err
    run("corpus", "build", source, "--name", "notes", *LICENSE)
    done = run("corpus", "build", source, "--name", "notes", *LICENSE, code=2)
    assert "already exists" in done.err
