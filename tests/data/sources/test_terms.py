"""From a source's words to SPDX and ISO: nothing is guessed, and every doubt has a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.data import corpus
from govray.data.sources import split as splitting
from govray.data.sources.quarantine import MOST_VALUES, Quarantine
from govray.data.sources.record import SourceRecord
from govray.data.sources.split import split
from govray.data.sources.terms import RecordTerms, TermsReader, Unclear
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
        ("PSF", "no known licence", "PSF-2.0"),
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


@given(st.text(max_size=40))
def test_any_word_is_clear_or_unclear(word: str) -> None:
    found = read(word)
    if isinstance(found, RecordTerms):
        assert spdx.normalise(found.license) == found.license
        assert spdx.category(found.license) not in (None, "unknown")


LICENSES = ["MIT", "MIT OR Apache-2.0", "MIT AND Apache-2.0", "GPL-2.0+", "CC-BY-4.0"]


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
