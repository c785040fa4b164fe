"""Which kinds of personal data texts hold, by Presidio's patterns and check digits.

It runs in processes of its own, which ``scan.py`` starts, so that nothing of Presidio is in the one
that builds. Each reads lines of JSON with texts and answers with lines, until its input ends.

Invariants

* Nothing is downloaded, and nothing is looked up. There is no language model. Words around a weak
  finding are cut by a blank pipeline of spaCy. The list of public suffixes is the one that the
  package brings.
* No text leaves. An answer has kinds only, and Presidio's log, which repeats findings, is dropped.
* What could not be scanned to its end is said to be so. Presidio itself only logs it.

Presidio's own rules hold, with two exceptions. An IP address has to be a public one, and a version
number with four parts or an object identifier doesn't count. Digits of a fraction are no credit
card.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import spacy
import tldextract
from presidio_analyzer import EntityRecognizer, LemmaContextAwareEnhancer, RecognizerResult
from presidio_analyzer.nlp_engine import NlpArtifacts, SpacyNlpEngine
from presidio_analyzer.predefined_recognizers import (
    CreditCardRecognizer,
    CryptoRecognizer,
    EmailRecognizer,
    IbanRecognizer,
    IpRecognizer,
    MacAddressRecognizer,
    PhoneRecognizer,
    UsSsnRecognizer,
)

from govray.governance.policy.pii_scan import PiiEntity

PIECE = 2048
"""Characters that are looked at together: Presidio's search for context is quadratic."""
OVERLAP = 256
"""Characters that two pieces share at least; longer than any finding."""

_LANGUAGE = "en"
# Without lists to fetch it takes the one in the package, and without a folder it caches nothing.
_SUFFIXES = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
_VERSION = re.compile(r"(\bv(er(sion)?)?|\brelease|\bbuild|[=<>~!^]=?)[\s:.'\"]*$", re.IGNORECASE)
_DOTTED_BEFORE = re.compile(r"\d\.$")
_DOTTED_BEHIND = re.compile(r"\.\d")
_BEFORE = 24  # characters in which a word for a version may stand
# Between two digits of a phone number are at most four characters of punctuation.
_PHONE_DIGITS = re.compile(r"(?:\d\D{0,4}){4}\d")


class _EmailRecognizer(EmailRecognizer):
    """Presidio's own asks for the list of public suffixes over the network."""

    def validate_result(self, pattern_text: str) -> bool:
        return bool(_SUFFIXES(pattern_text).fqdn)


class _IpRecognizer(IpRecognizer):
    """Presidio's own takes ``a::b`` of C++, 127.0.0.1 and 2.16.840.1.101 for someone's address."""

    def analyze(self, text: str, *words: Any, **named: Any) -> list[RecognizerResult]:
        return [
            each
            for each in super().analyze(text, *words, **named)
            if _public(text[each.start : each.end])
            and not _DOTTED_BEFORE.search(text, max(0, each.start - 2), each.start)
            and not _DOTTED_BEHIND.match(text, each.end)
            and not _VERSION.search(text, max(0, each.start - _BEFORE), each.start)
        ]


class _CreditCardRecognizer(CreditCardRecognizer):
    """Presidio's own takes the digits of one fraction in ten for a card."""

    def analyze(self, text: str, *words: Any, **named: Any) -> list[RecognizerResult]:
        return [
            each
            for each in super().analyze(text, *words, **named)
            if not _DOTTED_BEFORE.search(text, max(0, each.start - 2), each.start)
        ]


_RECOGNIZERS: dict[PiiEntity, Callable[[], EntityRecognizer]] = {
    "CREDIT_CARD": _CreditCardRecognizer,
    "CRYPTO": CryptoRecognizer,
    "EMAIL_ADDRESS": _EmailRecognizer,
    "IBAN_CODE": IbanRecognizer,
    "IP_ADDRESS": _IpRecognizer,
    "MAC_ADDRESS": MacAddressRecognizer,
    "PHONE_NUMBER": PhoneRecognizer,
    "US_SSN": UsSsnRecognizer,
}


class NotScanned(Exception):
    """A text could not be scanned to its end. Says why, without a word of the text."""


class PatternAnalyzer:
    """Finds the kinds of personal data in texts.
    ``score``: from which score on a finding counts, in (0, 1]."""

    def __init__(self, entities: Sequence[PiiEntity], score: float) -> None:
        self._recognizers = {entity: _RECOGNIZERS[entity]() for entity in entities}
        self._score = score
        self._enhancer = LemmaContextAwareEnhancer()
        self._engine = SpacyNlpEngine(models=[{"lang_code": _LANGUAGE, "model_name": "blank"}])
        self._engine.nlp = {_LANGUAGE: spacy.blank(_LANGUAGE)}  # type: ignore[assignment]
        _silence()

    def kinds(self, texts: Sequence[str]) -> tuple[PiiEntity, ...]:
        """The kinds that the texts of one record hold, sorted."""
        found: set[PiiEntity] = set()
        _LOG.gave_up = False
        for text in texts:
            for piece in pieces(text):
                for entity, recognizer in self._recognizers.items():
                    if entity not in found and self._holds(recognizer, piece):
                        found.add(entity)
        if _LOG.gave_up:
            raise NotScanned("a pattern took too long")
        return tuple(sorted(found))

    def _holds(self, recognizer: EntityRecognizer, piece: str) -> bool:
        if isinstance(recognizer, PhoneRecognizer) and not self._phone_may_count(piece):
            return False
        try:
            # Patterns need no words; those of a weak finding are cut below.
            results = recognizer.analyze(piece, recognizer.supported_entities, None)  # type: ignore[arg-type]
            if any(each.score >= self._score for each in results):
                return True
            weak = [each for each in results if self._in_context(each.score) >= self._score]
            if not weak:
                return False
            told = self._enhancer.enhance_using_context(
                piece, weak, self._words(piece), [recognizer]
            )
        except Exception as error:  # its words may repeat the text
            raise NotScanned(f"the scan failed with {type(error).__name__}") from None
        return any(each.score >= self._score for each in told)

    def _phone_may_count(self, piece: str) -> bool:
        """Whether there are five digits, and a word for phones if the number alone is too weak.
        Phone numbers take ten times as long as all other kinds: each region's are searched for."""
        if not _PHONE_DIGITS.search(piece):
            return False
        if self._score <= PhoneRecognizer.SCORE:
            return True
        words = piece.lower()
        return any(word in words for word in PhoneRecognizer.CONTEXT)

    def _in_context(self, score: float) -> float:
        """The score that words around a finding may lift it to."""
        lifted = score + self._enhancer.context_similarity_factor
        return float(max(lifted, self._enhancer.min_score_with_context_similarity))

    def _words(self, piece: str) -> NlpArtifacts:
        """The words as they stand: a blank pipeline knows no lemmas."""
        words = self._engine.get_nlp(_LANGUAGE)(piece)
        return NlpArtifacts(
            entities=[],
            tokens=words,
            tokens_indices=[word.idx for word in words],
            lemmas=[word.text for word in words],
            nlp_engine=self._engine,
            language=_LANGUAGE,
        )


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of at most ``PIECE`` characters, cut at white space where there is any.
    Each shares at least ``OVERLAP`` characters with the one before, so that no finding is cut."""
    start = 0
    while len(text) - start > PIECE:
        stop = _space(text, start + PIECE - OVERLAP, start + PIECE)
        yield text[start:stop]
        start = _space(text, stop - 2 * OVERLAP, stop - OVERLAP)
    yield text[start:]


def _space(text: str, start: int, stop: int) -> int:
    """Where the last white space of a stretch is, or its end."""
    found = max(text.rfind(each, start, stop) for each in " \n\t")
    return stop if found < 0 else found


def _public(found: str) -> bool:
    """Whether an address, or a network's, may be of a host on the internet."""
    try:
        address = ipaddress.ip_interface(found.partition("%")[0]).ip
    except ValueError:
        return True
    return address.is_global and not address.is_reserved and not address.is_multicast


class _Silence(logging.Handler):
    """Takes what Presidio logs and keeps one thing of it: whether a pattern was given up."""

    gave_up = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], TimeoutError):
            self.gave_up = True


_LOG = _Silence(logging.WARNING)


def _silence() -> None:
    for name in ("presidio-analyzer", "tldextract", "decision_process"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [_LOG], False


def serve(settings: str, requests: TextIO, answers: TextIO) -> None:
    """Answer each line of texts, ``[records][texts]``, with a line: for each record what it holds.
    An answer is a list of kinds, or in words why the record could not be scanned."""
    analyzer = PatternAnalyzer(**json.loads(settings))
    for line in requests:
        told: list[Sequence[str] | str] = []
        for texts in json.loads(line):
            try:
                told.append(analyzer.kinds(texts))
            except NotScanned as why:
                told.append(str(why))
        try:
            answers.write(json.dumps(told) + "\n")
            answers.flush()
        except BrokenPipeError:  # who asked is gone
            os._exit(1)
