"""Overrides of a file: what one changes, what it may name, and that the text keeps its meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import UsageError
from govray.governance.submission.yaml_overrides import (
    Override,
    overridden,
    overridden_text,
    parse_override,
    read_mapping,
)
from tests.support.table import each_row

JOBS = Path(__file__).parents[3] / "jobs"
FILE = {"optimizer": {"lr": 0.1, "name": "adamw"}, "stop": [{"steps": 5}], "seed": 1}

KEYS = st.text(st.characters(categories=["L", "N"], include_characters="_-. /"), min_size=1)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.dates()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
MAPPINGS = st.dictionaries(KEYS, VALUES, max_size=4)


@each_row(
    ("said", "path", "value"),
    [
        ("optimizer.lr=0.5", ("optimizer", "lr"), 0.5),
        ("stop.0.steps=7", ("stop", 0, "steps"), 7),
        ("seed=[1, 2]", ("seed",), [1, 2]),
        ("seed=", ("seed",), None),
        ("seed=a=b", ("seed",), "a=b"),
        ("seed=.inf", ("seed",), float("inf")),
        ("+checkpoint.every_steps=5", ("checkpoint", "every_steps"), 5),
        ('+search.space."optimizer.lr"={log: [1, 2]}', ("search", "space", "optimizer.lr"),
         {"log": [1, 2]}),
    ],
)  # fmt: skip
def test_an_override_changes_one_value(said: str, path: tuple[Any, ...], value: Any) -> None:
    changed: Any = overridden(FILE, [said])
    for step in path:
        changed = changed[step]
    assert changed == value
    assert FILE["seed"] == 1


@each_row(
    ("said", "told"),
    [
        ("optimiser.lr=1", "did you mean 'optimizer'"),
        ("optimizer.lrr=1", "did you mean 'lr'"),
        ("checkpoint=1", r"add what is not there yet with \+checkpoint=…"),
        ("stop.1.steps=1", "a list of 1"),
        ("+stop.1=1", "a list of 1"),
        ("seed.x=1", "seed is no mapping"),
        ("+seed.x=1", "seed is no mapping"),
        ("seed", "no override"),
        ("=1", "no override"),
        ("a..b=1", "no path"),
        ("a.=1", "no path"),
        (".a=1", "no path"),
        ("a b=1", "no path"),
        ("seed=[", "not readable"),
        ("seed=&a 1", "anchors"),
        ("seed=*a", "anchors"),
        ("seed=!!python/name:os.system", "tag"),
        ("seed=2026-99-99", "not readable"),
        ("seed=" + "[" * 200 + "]" * 200, "not readable"),
        ("seed=" + "9" * 5000, "no override"),
    ],
)
def test_what_is_not_there_or_no_override_is_refused(said: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        overridden(FILE, [said])


def test_a_refusal_does_not_repeat_the_value() -> None:
    for said in ("nothing=hunter2", "a..b=hunter2", "seed=[hunter2"):
        with pytest.raises(UsageError) as refused:
            overridden(FILE, [said])
        assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("file", ["train.yaml", "tune.yaml"])
def test_a_file_of_jobs_keeps_its_meaning_and_without_overrides_its_bytes(file: str) -> None:
    text = (JOBS / file).read_text()
    assert overridden_text(text, [], name=file) == text
    assert read_mapping(text, name=file) == yaml.safe_load(text)
    changed = yaml.safe_load(overridden_text(text, ["optimizer.lr=0.5"], name=file))
    assert changed.pop("optimizer")["lr"] == 0.5
    assert changed.items() <= yaml.safe_load(text).items()


@given(MAPPINGS, st.lists(KEYS.filter(lambda key: key.strip() == key), min_size=1, max_size=3))
def test_what_is_added_is_there_and_nothing_else_changes(
    value: dict[str, Any], path: list[str]
) -> None:
    override = Override(tuple(path), "new", adds=True)
    try:
        changed = overridden(value, [override])
    except UsageError:
        return  # on its way is a text, a number or a list
    found: Any = changed
    for step in path:
        found = found[step]
    assert found == "new"
    rest = [value.get(key) == changed[key] for key in value if key != path[0]]
    assert all(rest)


@given(st.text(max_size=60))
def test_any_text_is_an_override_or_a_usage_error(text: str) -> None:
    try:
        parsed = parse_override(text)
    except UsageError:
        return
    assert parsed.path
