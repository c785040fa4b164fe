"""What Presidio's patterns find, what they leave, and that nothing of it needs the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from govray.governance.policy.pii_scan import PII_ENTITIES, PII_SCORE, PiiEntity
from tests.support.table import each_row

if TYPE_CHECKING:
    from govray.data.pii.pattern_analyzer import PatternAnalyzer


@pytest.fixture(scope="module")
def pii() -> Any:
    """The module, imported when a test runs: Presidio brings spaCy, SciPy and transformers."""
    from govray.data.pii import pattern_analyzer

    return pattern_analyzer


@pytest.fixture(scope="module")
def analyzer(pii: Any) -> PatternAnalyzer:
    return pii.PatternAnalyzer(PII_ENTITIES, PII_SCORE)


# Made up, or published as examples: no one's.
EXAMPLES: dict[PiiEntity, list[str]] = {
    "EMAIL_ADDRESS": ["Write to jane.doe@example.org.", "<j+d@mail.example.co.uk>", "ü@müller.de"],
    "CREDIT_CARD": [
        "4111 1111 1111 1111",
        "paid with 5500-0000-0000-0004",
        "378282246310005",
        "Nr. 4111111111111111.",
    ],
    "IBAN_CODE": ["DE89370400440532013000", "to GB82 WEST 1234 5698 7654 32, today"],
    "IP_ADDRESS": [
        "seen from 93.184.216.34 at noon",
        "2606:4700:4700::1111",
        "8.8.8.0/24",
        "host 8.8.8.8.",
    ],
    "US_SSN": ["SSN 536-90-4399", "social security 219 09 9999"],
    "PHONE_NUMBER": ["phone: +1 415-555-2671", "her number is (212) 555-0187"],
    "MAC_ADDRESS": ["00:1A:2B:3C:4D:5E", "0012.3456.789A"],
    "CRYPTO": ["1BoatSLRHtKNngkdXEeobR76b53LETtpyT", "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq"],
}

NOTHING = [
    "The pump runs at 420 rpm.",
    "version 1.2.3, then 2.0.0rc1",
    "libfoo version 11.4.2.1 and torch==2.1.0.3, release 7.1.2.9, v6.1.2.3",
    "listen on 127.0.0.1, 0.0.0.0:80, 192.168.0.1, ::1 or fe80::1",
    "std::vector<a::b> x[::2] dead::beef",
    "d41d8cd98f00b204e9800998ecf8427e",
    "sha256:3a7bd3e2360a3d29eea436fcfb7e44c735d117c42d1c1835420b6b9942dd4f1b",
    "4111 1111 1111 1112",
    "DE89370400440532013001",
    "123e4567-e89b-12d3-a456-426614174000",
    "@decorator user@localhost a @ b x@y.notatld",
    "2024-01-02T12:34:56Z, 3.14159265358979, 1_000_000",
    "000-00-0000",
    "0.137681127712316, 6.666666666666667 and -87.65664760856414",
    "ObjectIdentifier('2.16.840.1.101.3.4.1.2')",
    "",
]


@each_row(
    ("entity", "text"), [(entity, text) for entity, each in EXAMPLES.items() for text in each]
)
def test_examples_are_found(analyzer: PatternAnalyzer, entity: PiiEntity, text: str) -> None:
    assert entity in analyzer.kinds([text])
    assert analyzer.kinds(["nothing here", f"{'word ' * 3000}{text}{' word' * 3000}"])


@each_row("text", NOTHING)
def test_what_only_looks_like_it_is_left(analyzer: PatternAnalyzer, text: str) -> None:
    assert analyzer.kinds([text]) == ()


def test_only_what_is_asked_for_counts_and_from_the_score_on(pii: Any) -> None:
    analyzer = pii.PatternAnalyzer
    text = "card 4111 1111 1111 1111 of jane@example.org, id 4155552671"
    assert analyzer(["EMAIL_ADDRESS"], 0.5).kinds([text]) == ("EMAIL_ADDRESS",)
    both = ("CREDIT_CARD", "EMAIL_ADDRESS")
    assert analyzer([*both, "PHONE_NUMBER"], 0.5).kinds([text]) == both
    # A number without a word for phones has a score of 0.4, and 0.75 with one.
    assert analyzer(["PHONE_NUMBER"], 0.4).kinds(["id 4155552671"]) == ("PHONE_NUMBER",)
    assert analyzer(["PHONE_NUMBER"], 0.75).kinds(["id 4155552671"]) == ()
    assert analyzer(["PHONE_NUMBER"], 0.75).kinds(["phone 4155552671"]) == ("PHONE_NUMBER",)


def test_a_finding_at_any_cut_is_found(pii: Any, analyzer: PatternAnalyzer) -> None:
    for words in ("word ", "x" * 50):
        for shift in range(0, 2 * pii.OVERLAP, 37):
            filler = (words * pii.PIECE)[: pii.PIECE - shift]
            text = f"{filler} DE89 3704 0044 0532 0130 00 {filler}"
            assert analyzer.kinds([text]) == ("IBAN_CODE",), (words, shift)


def test_what_takes_too_long_is_not_passed_by(
    pii: Any, analyzer: PatternAnalyzer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Presidio goes on without a pattern that took too long, and logs it."""

    class Slow:
        def finditer(self, *_: object, **__: object) -> object:
            raise TimeoutError

    recognizer = analyzer._recognizers["MAC_ADDRESS"]
    assert analyzer.kinds(["00:1A:2B:3C:4D:5E"]) == ("MAC_ADDRESS",)  # compiles the patterns
    for pattern in recognizer.patterns:  # type: ignore[attr-defined]
        monkeypatch.setattr(pattern, "compiled_regex", Slow())
    with pytest.raises(pii.NotScanned, match="took too long"):
        analyzer.kinds(["a text"])


def test_an_error_of_presidio_repeats_no_text(
    pii: Any, analyzer: PatternAnalyzer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(text: str, *_: object) -> None:
        raise ValueError(f"did not find {text}")

    monkeypatch.setattr(analyzer._recognizers["US_SSN"], "analyze", fails)
    with pytest.raises(pii.NotScanned, match="failed with ValueError") as failed:
        analyzer.kinds(["jane@example.org"])
    assert "jane" not in str(failed.value)
    assert failed.value.__suppress_context__
