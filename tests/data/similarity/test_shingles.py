"""The same letters have the same shingles, however they are stored, in scripts of every kind.

``languages.tsv`` has the beginnings of two articles of the Universal Declaration of Human Rights
in 28 languages.
"""

from __future__ import annotations

import re
import time
import unicodedata
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from govray.data import corpus
from govray.data.families.near_families import bands
from govray.data.similarity.near_copies import near_records
from govray.data.similarity.shingles import LEAST, normalised, shingles

LANGUAGES = {
    language: (text, other)
    for language, text, other in (
        line.split("\t")
        for line in (Path(__file__).parent / "languages.tsv").read_text().split("\n")[:-1]
    )
}


def changed(text: str, every: int = 50) -> str:
    """The text with each ``every``-th letter, with its marks, replaced by another of the text."""
    units = regex.findall(r"\X", text)
    letters = [k for k, unit in enumerate(units) if unit[0].isalpha()]
    for place in letters[every - 1 :: every]:
        units[place] = next(units[k] for k in letters if units[k][0] != units[place][0])
    return "".join(units)


def five_words(text: str) -> set[str]:
    """What texts were compared by before: five words of the standard library in a row."""
    words = re.findall(r"\w+", text.casefold())
    return {" ".join(each) for each in zip(*(words[k:] for k in range(5)), strict=False)}


def overlap(one: set[str], other: set[str]) -> float:
    return len(one & other) / max(1, min(len(one), len(other)))


@pytest.fixture(scope="module")
def shelved(tmp_path_factory: pytest.TempPathFactory) -> corpus.Built:
    """A corpus of one text in each language, decomposed: as some systems and PDFs store it."""
    records = [
        (language, unicodedata.normalize("NFD", text).encode())
        for language, (text, _) in LANGUAGES.items()
    ]
    return corpus.build(tmp_path_factory.mktemp("languages"), "a", records, secret=bytes(32))


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_copy_is_found_in_any_form_and_with_a_fiftieth_of_its_letters_changed(
    language: str, shelved: corpus.Built
) -> None:
    text, other = LANGUAGES[language]
    number = list(LANGUAGES).index(language)

    def found(asked: bytes) -> list[int]:
        answers = near_records(asked, shelved.folder.parent, "a", shelved.records, lambda *_: True)
        return [each.record for each in answers]

    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        asked = unicodedata.normalize(form, text)
        assert found(asked.encode()) == [number]
        assert found(asked.upper().encode("utf-16")) == [number]
        assert found(changed(asked).encode()) == [number]
    # The control: another text of the language is in no record.
    assert found(other.encode()) == []


def test_what_the_standard_librarys_words_missed() -> None:
    """The control, of five words in a row: what is lost by another form, and by changed letters."""
    decomposed, edited = [], []
    for language, (text, _) in LANGUAGES.items():
        forms = [five_words(unicodedata.normalize(form, text)) for form in ("NFC", "NFD")]
        decomposed += [language] * (overlap(*forms) < 0.5)
        edited += [language] * (overlap(five_words(text), five_words(changed(text))) < 0.5)
    assert {"French", "Greek", "Japanese", "Korean", "Vietnamese"} <= set(decomposed)
    assert {"Chinese", "French", "Georgian", "Japanese", "Russian"} <= set(edited)


@given(st.text(), st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
def test_every_form_of_a_text_is_one_when_normalised(text: str, form: str) -> None:
    assert normalised(unicodedata.normalize(form, text)) == normalised(text)
    assert normalised(normalised(text)) == normalised(text)


def test_the_normal_form_is_unicodes_own() -> None:
    """NFKC_Casefold: what is folded is composed again, and what is ignored parts no letters."""
    assert normalised("\u0390") == "\u0390"
    assert normalised("E\u034f\u0301\u00ad\u200bß") == "\u00e9ss"


def test_what_is_no_letter_changes_nothing() -> None:
    text = "The quick brown fox jumps over the lazy dog, and so it ends."
    same = shingles(text.encode())
    assert len(same) >= LEAST
    for other in (
        text.replace("o", "o\u00ad").replace("e", "\u200be\u2060"),  # soft hyphens, zero width
        text.replace(" ", "\ufdd0 \U0001ffff\x00 "),  # noncharacters
        text.replace(" ", "\n— ").replace("ends", "en-\nds").replace("lazy", "ｌａｚｙ"),
        "\ufeff" + text.upper(),
    ):
        assert set(shingles(other.encode())) >= set(same)
    lone = text.encode() + "\ud800".encode("utf-8", "surrogatepass")  # it is no UTF-8
    assert shingles(lone) == same


def test_marks_in_a_row_take_no_longer_than_letters() -> None:
    """In order of their classes, Python puts n marks in the time of n squared."""
    text = ("a" + "\u0300\u0327" * 200_000).encode()
    began = time.process_time()
    shingles(text)
    assert time.process_time() - began < 5


def test_every_word_of_unicode_begins_a_shingle() -> None:
    """The word boundaries of UAX 29, as the library ``regex`` has them."""
    for text, _ in LANGUAGES.values():
        joined = "".join(regex.findall(r"[\p{L}\p{M}\p{N}]", normalised(text)))
        begun = set(shingles(text.encode()))
        at = 0
        for word in regex.split(r"(?wV1)\b", normalised(text)):
            letters = "".join(regex.findall(r"[\p{L}\p{M}\p{N}]", word))
            if letters and at + 16 <= len(joined):
                assert {joined[at : at + 16], joined[at : at + 8]} & begun, word
            at += len(letters)


def test_short_texts_are_one_family_in_any_form() -> None:
    forms = [unicodedata.normalize(form, "Élan vital").encode() for form in ("NFC", "NFD")]
    assert forms[0] != forms[1]
    [one, same, other] = bands([*forms, b"Elan vital"]).T.tolist()
    assert one == same != other
    # What is no text is equal by its bytes alone.
    assert bands([b"\xff\x00"]).tolist() != bands([b"\xff\x01"]).tolist()


def test_golden_shingles() -> None:
    """An index leaves the process: other shingles are another form of text."""
    text = "Ünïcode’s Words, 12.5 한국어 และภาษาไทย, 日本語の文章を比べる。"
    assert shingles(text.encode()) == GOLDEN


GOLDEN = [
    "ünïcodeswords125",
    "swords125한국어และภ",
    "words125한국어และภา",
    "125한국어และภาษาไทย",
    "5한국어และภาษาไทย日本",
    "한국어และภา",
    "และภาษาไทย日本語の文章",
    "ละภาษาไทย日本語の文章を",
    "ะภาษาไทย日本語の文章を比",
    "ภาษาไทย日本語の文章を比べ",
    "าษาไทย日本語の文章を比べる",
]
