"""Paths and URLs: what is taken for which, and that no URL becomes a folder of the disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import ray.train

from govray.cli.app import _command, app
from govray.errors import UsageError
from govray.platform.store.store_secret import KEY_ENV, load_key
from govray.storage.storage_url import below, check_path, check_url, is_url
from govray.train import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment, read_experiment
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


EXPERIMENT = {
    "name": "tiny",
    "hyperparameters": {"context": 8},
    "data": {"corpora": "data/corpora", "rows_per_step": {"all": 1}},
    "governance": {"policy": "policy.json", "trust_root": "root.json"},
    "max_steps": 1,
}


@each_row(
    ("field", "url"),
    [
        ("pretrained", "s3://bucket/AKIA"),
        ("attestation_key", "s3:/bucket/AKIA"),
        ("attestation_key_password_file", "S3://bucket/AKIA"),
        ("data.tokenizer", "s3://bucket/AKIA"),
    ],
)
def test_an_experiment_names_the_field_that_has_a_url(field: str, url: str) -> None:
    assert parse_experiment(EXPERIMENT, where="tiny.yaml").storage_path == "runs"
    value = with_field(field, url)
    with pytest.raises(UsageError, match=rf"{field}.*give a path, not a URL") as told:
        parse_experiment(value, where="tiny.yaml")
    assert "docs/storage.md" in str(told.value)
    assert "AKIA" not in str(told.value)


PLACES = ["data.corpora", "storage_path", "governance.policy", "governance.trust_root"]


def with_field(field: str, value: Any) -> dict[str, Any]:
    section, _, name = field.rpartition(".")
    if section:
        return {**EXPERIMENT, section: {**EXPERIMENT[section], name: value}}  # type: ignore[dict-item]
    return {**EXPERIMENT, name: value}


@each_row("field", PLACES)
def test_a_place_is_a_path_or_the_url_of_an_object_store(field: str) -> None:
    for given in ("here/below", "s3://bucket/prefix?region=eu-west-1", "gs://bucket/prefix"):
        parse_experiment(with_field(field, given), where="tiny.yaml")
    for given, why in [
        ("s4://bucket/AKIA", r"did you mean s3://"),
        ("s3:/bucket/AKIA", r"did you mean s3://"),
        ("https://bucket/AKIA", "give an object store's URL"),
        ("fsspec+memory://bucket/AKIA", "give an object store's URL"),
        ("s3://AKIA:hush@bucket", "no place in a URL"),
        ("s3://bucket/AKIA//runs/", "has an empty part: write one slash"),
    ]:
        with pytest.raises(UsageError, match=f"{field}.*{why}") as told:
            parse_experiment(with_field(field, given), where="tiny.yaml")
        assert "AKIA" not in str(told.value)


def test_the_experiment_file_itself_is_a_path() -> None:
    with pytest.raises(UsageError, match="give a path"):
        read_experiment("s3://bucket/tiny.yaml")


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


@pytest.mark.parametrize(
    "field",
    ["tokenizer", "pretrained"],
)
def test_a_trainer_refuses_a_url_for_a_path(field: str) -> None:
    known: dict[str, Any] = {each.name: each.default for each in fields(GovernedTrainer)}
    assert field in known
    given: dict[str, Any] = {
        **dict.fromkeys(("corpora", "policy", "trust_root"), "x"),
        "train_loop_per_worker": print,
        "max_steps": 1,
        "rows_per_step": {},
    }
    GovernedTrainer(**given)
    with pytest.raises(UsageError, match=f"{field}: give a path"):
        GovernedTrainer(**{**given, field: "s3://bucket/p"})
    for place in ("corpora", "policy", "trust_root", "delegations", "revocations", "resume"):
        several = place in ("delegations", "revocations")
        GovernedTrainer(**{**given, place: ["s3://bucket/p"] if several else "s3://bucket/p"})
        with pytest.raises(UsageError, match=f"{place}: .*did you mean s3://"):
            GovernedTrainer(**{**given, place: ["s4://bucket/p"] if several else "s4://bucket/p"})
    with pytest.raises(UsageError, match=r"run_config\.storage_path: .*did you mean s3://"):
        GovernedTrainer(**given, run_config=ray.train.RunConfig(storage_path="s4://bucket"))


@each_row(
    "url",
    [
        "s3://bucket",
        "s3://bucket/a/b?region=eu-west-1",
        "gs://bucket/prefix",
        "abfss://container@account.dfs.core.windows.net/prefix",
    ],
)
def test_a_store_has_a_url(url: str) -> None:
    assert check_url(url) == url


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


def test_a_url_in_an_experiment_is_checked_without_repeating_it() -> None:
    value = {"checkpoint": {"storage": "s3://AKIA:hush@bucket/p"}}
    with pytest.raises(UsageError, match=r"checkpoint\.storage.*no place in a URL") as told:
        parse_experiment(value, where="tiny.yaml")
    assert "hush" not in str(told.value)


def test_a_place_beneath_a_url_keeps_its_options() -> None:
    assert below("s3://b/p/?region=r", "run.1") == "s3://b/p/run.1?region=r"
    assert below("s3://b", "run.1") == "s3://b/run.1"
