"""From a source's words to SPDX and ISO: nothing is guessed, and every doubt has a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.data import corpus
from govray.data.sources import split as splitting
from govray.data.sources.quarantine import MOST_VALUES, Quarantine
from govray.data.sources.record import SourceRecord
from govray.data.sources.split import corpus_name, split
from govray.data.sources.terms import RecordTerms, TermsReader, Unclear, check_values
from govray.errors import UsageError
from govray.governance.trust import license as spdx
from tests.support.table import each_row

DEFAULTS = {"jurisdiction": "ZZ", "sensitivity": "public"}


def read(
    *license: str, reader: TermsReader | None = None, **stated: tuple[str, ...]
) -> RecordTerms | Unclear:
    said = {"license": license, **stated}
    return (reader or TermsReader(DEFAULTS)).read({k: v for k, v in said.items() if v})


@each_row(
    ("word", "license"),
    [
        ("mit", "MIT"),
        ("MIT License", "MIT"),
        ("apache-2.0", "Apache-2.0"),
        ("Apache License, Version 2.0", "Apache-2.0"),
        ("cc-by-sa-4.0", "CC-BY-SA-4.0"),
        ("GPL-2.0", "GPL-2.0-only"),
        ("mit or apache-2.0", "MIT OR Apache-2.0"),
    ],
)
def test_a_word_that_means_one_licence_is_read(word: str, license: str) -> None:
    assert read(word) == RecordTerms(license, "ZZ", "public")


@each_row(
    ("word", "why", "suggestion"),
    [
        ("Apache-2", "no known licence", "Apache-2.0"),
        ("MTI", "no known licence", "MIT"),
        ("CC BY-SA 4.0", "no SPDX expression", "CC-BY-SA-4.0"),
        ("gpl 3.0 only", "no SPDX expression", "GPL-3.0-only"),
        ("BSD License", "a name of several licences: 0BSD, BSD-2-Clause", None),
        ("NOASSERTION", "no known licence", None),
        ("all rights reserved", "no SPDX expression", None),
        ("LicenseRef-acme", "does not follow from their name", "--license-category"),
    ],
)
def test_a_word_that_does_not_is_unclear(word: str, why: str, suggestion: str | None) -> None:
    found = read(word)
    assert isinstance(found, Unclear)
    assert why in found.why
    assert (found.value, found.suggestion) == (word, suggestion)


def test_terms_of_ones_own_have_the_category_that_was_said() -> None:
    reader = TermsReader(DEFAULTS, reference_category="commercial")
    assert read("LicenseRef-acme", reader=reader) == RecordTerms("LicenseRef-acme", "ZZ", "public")


def test_several_words_have_to_mean_the_same() -> None:
    assert read("mit", "MIT License") == read("MIT")
    found = read("MIT", "GPL-3.0-only")
    assert isinstance(found, Unclear)
    assert (found.value, found.why[:18]) == ("GPL-3.0-only | MIT", "conflicting values")


def test_records_that_state_nothing_have_the_default_or_are_unclear() -> None:
    found = read()
    assert isinstance(found, Unclear)
    assert (found.attribute, found.why) == ("license", "no value")
    assert read(reader=TermsReader(DEFAULTS | {"license": "mit"})) == read("MIT")


@each_row(
    ("stated", "terms", "suggestion"),
    [
        ({"jurisdiction": ("de",)}, ("DE", "public"), None),
        ({"sensitivity": ("Internal",)}, ("ZZ", "internal"), None),
        ({"jurisdiction": ("UK",)}, None, "GB"),
        ({"jurisdiction": ("EU",)}, None, None),
        ({"sensitivity": ("confidental",)}, None, "confidential"),
        ({"language": ("German!",)}, None, "leave it out: --column language="),
    ],
)
def test_other_attributes(
    stated: dict[str, tuple[str, ...]], terms: tuple[str, str] | None, suggestion: str | None
) -> None:
    found = read("MIT", **stated)
    if terms:
        assert found == RecordTerms("MIT", *terms)
    else:
        assert isinstance(found, Unclear)
        assert found.suggestion == suggestion


def test_a_person_decides_what_a_word_means() -> None:
    reader = TermsReader(DEFAULTS, {"license": {"BSD License": "BSD-3-Clause"}})
    assert read("BSD License", reader=reader) == read("BSD-3-Clause")


@each_row(
    ("options", "says"),
    [
        ({"defaults": {"license": "MTI"}}, "'MTI': no known licence"),
        ({"values": {"license": {"x": "BSD License"}}}, "several licences"),
        ({"values": {"licence": {"x": "MIT"}}}, "no attribute 'licence'"),
        ({"values": {"jurisdiction": {"x": "UK"}}}, "Did you mean GB"),
    ],
)
def test_decided_values_have_to_be_clear(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        TermsReader(**options)


@each_row("value", [[], {"license": "MIT"}, {"license": {"x": 1}}, None])
def test_a_table_of_values_is_two_levels_of_text(value: Any) -> None:
    with pytest.raises(UsageError, match="not a table of values"):
        check_values(value, where="values.yaml")


@given(st.text(max_size=40))
def test_any_word_is_clear_or_unclear(word: str) -> None:
    found = read(word)
    if isinstance(found, RecordTerms):
        assert spdx.normalise(found.license) == found.license
        assert spdx.category(found.license) not in (None, "unknown")


LICENSES = ["MIT", "MIT OR Apache-2.0", "MIT AND Apache-2.0", "GPL-2.0+", "CC-BY-4.0"]
TERMS = st.builds(
    RecordTerms,
    st.sampled_from(LICENSES),
    st.sampled_from(["DE", "US", "ZZ"]),
    st.sampled_from(["public", "restricted"]),
)


@given(one=TERMS, other=TERMS)
def test_different_terms_have_different_names(one: RecordTerms, other: RecordTerms) -> None:
    corpus.check_name(corpus_name("web", one, DEFAULTS))
    same = corpus_name("web", one, DEFAULTS) == corpus_name("web", other, DEFAULTS)
    assert same == (one == other)


def test_long_expressions_have_names_too() -> None:
    long = [" AND ".join(["MIT", *["Apache-2.0"] * count]) for count in (60, 61)]
    names = {corpus_name("web", RecordTerms(each, "DE", "internal"), DEFAULTS) for each in long}
    assert len(names) == 2
    for name in names:
        corpus.check_name(name)


def some(licenses: list[str]) -> list[SourceRecord]:
    return [
        SourceRecord(f"r{i:05}", f"row {i}", f"{i}".encode(), {"license": (each,)})
        for i, each in enumerate(licenses)
    ]


@given(licenses=st.lists(st.sampled_from([*LICENSES, "BSD", "what"]), min_size=1, max_size=30))
def test_every_record_is_in_one_corpus_or_in_quarantine(
    tmp_path_factory: pytest.TempPathFactory, licenses: list[str]
) -> None:
    out = tmp_path_factory.mktemp("split")
    quarantine = Quarantine()
    clear = [each for each in licenses if each not in ("BSD", "what")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splitting, "PENDING_BYTES", 3)
        if not clear:
            with pytest.raises(UsageError, match="every record is in quarantine"):
                split(out, "web", some(licenses), TermsReader(DEFAULTS), quarantine)
            assert not list(out.iterdir())
            return
        made = split(out, "web", some(licenses), TermsReader(DEFAULTS), quarantine)
    found: dict[str, str] = {}
    for each in made:
        corpus.verify_corpus(each.folder, each.built.records)
        contents = [bytes(r) for p in corpus.part_files(each.folder) for r in corpus.read_part(p)]
        assert contents == sorted(contents, key=int)
        found |= {content.decode(): each.terms.license for content in contents}
    expected = {str(i): each for i, each in enumerate(licenses) if each in LICENSES}
    assert {i: spdx.normalise(each) for i, each in expected.items()} == found
    assert quarantine.records == len(licenses) - len(clear)
    assert {v.value: v.records for v in quarantine.values} == {
        word: licenses.count(word) for word in ("BSD", "what") if word in licenses
    }


def test_a_split_that_fails_leaves_no_corpus(tmp_path: Path) -> None:
    (tmp_path / "web_CC-BY-4.0").mkdir()
    with pytest.raises(UsageError, match="already exists"):
        split(tmp_path, "web", some(["MIT", "CC-BY-4.0"]), TermsReader(DEFAULTS), Quarantine())
    assert [path.name for path in tmp_path.iterdir()] == ["web_CC-BY-4.0"]


def test_too_many_combinations_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "MOST_CORPORA", 2)
    with pytest.raises(UsageError, match="more than 2 combinations"):
        split(tmp_path, "web", some(LICENSES), TermsReader(DEFAULTS), Quarantine())
    assert not list(tmp_path.iterdir())


def test_quarantine_is_bounded_and_counts_all() -> None:
    quarantine = Quarantine()
    for i in range(MOST_VALUES + 10):
        quarantine.put(f"row {i}", "license", f"word {i}", "no known licence")
    quarantine.put("again", "license", "word 0", "no known licence")
    assert len(quarantine.values) == MOST_VALUES + 1
    assert quarantine.values[0].why == "further reasons, not told apart"
    assert quarantine.values[0].records == 10
    assert quarantine.values[1].examples == ["row 0", "again"]
    assert quarantine.records == sum(each.records for each in quarantine.values)
