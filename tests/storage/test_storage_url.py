"""Paths and URLs: what is taken for which, and that no URL becomes a folder of the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from govray.cli.app import _command, app
from govray.errors import UsageError
from govray.platform.store.store_secret import KEY_ENV, load_key
from govray.storage.storage_url import check_path, check_url, is_url
from tests.support.table import each_row

URLS = ["s3://bucket/p", "s3:/bucket", "S3://bucket", "s4://bucket", "s3:bucket", "file:///p"]
PATHS = ["runs", "/shared/runs", "./s3:/bucket", "C:/runs", "a:b", "runs/s3:/bucket", "env:NAME"]


@each_row("text", URLS)
def test_what_is_meant_as_a_url_is_no_path(text: str) -> None:
    assert is_url(text)
    for path in (text, Path(text)):  # which has one slash
        with pytest.raises(ValueError, match="give a path, not a URL"):
            check_path(path)


@each_row("text", PATHS)
def test_a_path_is_none(text: str) -> None:
    assert not is_url(text)
    assert check_path(text) == text


def test_a_store_s_secret_is_not_made_in_a_folder_named_like_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(KEY_ENV, "s3://bucket/secret")
    with pytest.raises(UsageError, match=f"{KEY_ENV}: give a path, not a URL"):
        load_key("postgresql://localhost/store")
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv(KEY_ENV, "secret")
    load_key("postgresql://localhost/store")
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def verbs(command: Any, name: str = "govray") -> Iterator[tuple[str, Any]]:
    for word, each in getattr(command, "commands", {}).items():
        yield from verbs(each, f"{name} {word}")
    if not hasattr(command, "commands"):
        yield name, command


def test_every_verb_refuses_a_url_for_a_path() -> None:
    """Each parameter that is a path goes through one check, of the command as a whole."""
    taken = [
        (verb, param)
        for _, verb in verbs(_command(app))
        for param in verb.params
        if "Path" in str(getattr(getattr(param, "type_descriptor", None), "annotation", ""))
    ]
    assert len(taken) > 40
    for verb, param in taken:
        shown = param.opts[0] if param.opts[0].startswith("-") else param.metavar
        for given in (Path("s3:/bucket"), [Path("data"), Path("s3:/bucket")]):
            with pytest.raises(UsageError, match=rf"{shown}: give a path") as told:
                verb.callback(**{param.name: given})
            assert told.value.where == shown


@each_row(
    ("url", "message"),
    [
        ("runs/tiny", "give an object store's URL"),
        ("/shared/runs", "give an object store's URL"),
        ("file:///shared", "give an object store's URL"),
        ("fsspec+memory://x", "give an object store's URL"),
        ("https://bucket", "give an object store's URL"),
        ("s3:/bucket/p", r"did you mean s3://…\?"),
        ("S3://bucket/p", r"did you mean s3://…\?"),
        ("s4://bucket/p", r"did you mean s3://…\?"),
        ("abfss:bucket", r"did you mean abfss://…\?"),
        ("s3:///prefix", "names no bucket"),
        ("s3://AKIA:hush@bucket/p", "no place in a URL"),
        ("s3://AKIA@bucket/p", "no place in a URL"),
        ("abfs://account:hush@x.dfs.core.windows.net/p", "no place in a URL"),
        ("abfs://c@x.dfs.core.windows.net/p?account_key=hush", "may follow"),
        ("s3://bucket/p?secret_key=hush", "may follow"),
        ("s3://bucket/p#hush", "may follow"),
    ],
)
def test_a_url_that_is_none_or_may_hold_a_secret_is_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as told:
        check_url(url)
    assert "hush" not in str(told.value)
