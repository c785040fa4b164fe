"""`govray report`: everything is verified first, and what is written says what lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import Run, write_key
from tests.support.world import World


@pytest.fixture
def key(world: World, tmp_path: Path) -> Path:
    return write_key(tmp_path / "operator.pem", world.keys.operator)


@pytest.fixture
def words(root: Path, at: str) -> tuple[object, ...]:
    return ("--trust-root", root, "--at", at)


@pytest.fixture
def provider(
    run: Run, untouched: Path, key: Path, words: tuple[object, ...], tmp_path: Path
) -> Path:
    """A signed statement about the model."""
    run("report", "provider-template", untouched, "--out", "provider.yaml", *words)
    path = tmp_path / "provider.yaml"
    text = path.read_text()
    assert "\n#provider: " in text
    path.write_text(text.replace("\n#provider: …", "\nprovider: Example Ltd"))
    run("sign", path, "--key", key)
    return tmp_path / "provider.dsse.json"


@pytest.mark.parametrize("verb", ["eu-summary", "annex-xi"])
@pytest.mark.parametrize("form", ["html", "docx", "json"])
def test_each_form_is_written(
    run: Run, untouched: Path, words: tuple[object, ...], tmp_path: Path, verb: str, form: str
) -> None:
    out = tmp_path / f"draft.{form}"
    told = run("report", verb, untouched, "--out", out, *words, "--json").json
    assert told["format"] == form
    assert told["counts"]["missing"] == len(told["missing"]) > 0
    begin = {"html": b"<!doctype html>", "docx": b"PK", "json": b"{"}[form]
    assert out.read_bytes().startswith(begin)
    assert "already exists" in run("report", verb, untouched, "--out", out, *words, code=2).err
    text = run("report", verb, untouched, "--out", out, "--force", *words).out
    assert f"missing    {len(told['missing'])}" in text


def test_an_unsigned_statement_and_a_strangers_are_refused(
    run: Run, untouched: Path, words: tuple[object, ...], provider: Path, tmp_path: Path
) -> None:
    verb = ("report", "eu-summary", untouched, *words, "--out", "s.html", "--provider")
    done = run(*verb, tmp_path / "provider.yaml", code=1)
    assert "it is not signed. Sign it: govray sign" in done.err
    stranger = tmp_path / "stranger.pem"
    run("keys", "new", stranger)
    (tmp_path / "provider.dsse.json").unlink()
    run("sign", tmp_path / "provider.yaml", "--key", stranger)
    assert "provider statement" in run(*verb, provider, code=1).err
    assert not (tmp_path / "s.html").exists()


def test_a_changed_model_is_refused(
    run: Run, model: Path, words: tuple[object, ...], tmp_path: Path
) -> None:
    verbs = ("eu-summary", "annex-xi", "provider-template")
    for verb in verbs:
        run("report", verb, model, "--out", f"{verb}.json", *words)
    (model / "govray.json").write_bytes(b'{"entrypoint":"world:Other"}')
    for verb in verbs:
        done = run("report", verb, model, "--out", "changed.json", *words, code=1)
        assert "govray.json" in done.err
    assert not (tmp_path / "changed.json").exists()
    done = run("report", "eu-summary", model, "--out", "changed.json", code=3)
    assert "trust root" in done.err


def test_code_that_a_model_names_is_not_run_to_count(
    run: Run, untouched: Path, words: tuple[object, ...]
) -> None:
    verb = ("report", "annex-xi", untouched, "--out", "a.json", "--count-flops", *words)
    assert "world:Model, whose code is not run" in run(*verb, code=3).err
