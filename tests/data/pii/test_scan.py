"""Records with personal data are left out, in order and by count; none passes unscanned."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from govray.data.pii import scan as scan_module
from govray.data.pii.scan import Answer, PiiFilter
from govray.data.rows import chat
from govray.data.sources.quarantine import Quarantine, encode
from govray.data.sources.record import SourceRecord
from govray.errors import CouldNotCheck, UsageError
from govray.governance.policy.pii_scan import PII_ENTITIES, PiiScan

SCAN = PiiScan(analyzer="presidio-analyzer 2.2.366", entities=PII_ENTITIES, score=0.5)


def records(contents: list[bytes]) -> Iterator[SourceRecord]:
    for row, content in enumerate(contents, 1):
        yield SourceRecord(f"a#{row:012}", f"a.jsonl, row {row}", content, {})


def answer(batch: list[list[str]]) -> Answer:
    """Stands in for Presidio: at signs and digits are findings, and some texts defeat it."""
    told: Answer = []
    for texts in batch:
        text = " ".join(texts)
        kinds = [k for k, sign in (("EMAIL_ADDRESS", "@"), ("US_SSN", "9")) if sign in text]
        told.append("the scan failed with ValueError" if "!" in text else kinds)
        time.sleep(0.001 * (len(text) % 3))  # whoever is asked later may answer first
    return told


CONTENTS = [b"one", b"a@b", b"three", b"9 a@b", b"hard!", b"\xff\xfe", b"a@c", b"eight"]


def test_records_without_a_finding_stay_in_order_and_the_others_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for size in (1, 2, 3, 256):
        monkeypatch.setattr(scan_module, "BATCH_RECORDS", size)
        quarantine = Quarantine()
        some = PiiFilter(SCAN, quarantine, refuse=False).of(records(CONTENTS * 20), [answer] * 3)
        kept = [each.where for each in some]
        assert kept == [f"a.jsonl, row {8 * k + n}" for k in range(20) for n in (1, 3, 8)]
        assert quarantine.records == 100
        counted = {(each.value, each.why): each.records for each in quarantine.values}
        assert counted == {
            ("EMAIL_ADDRESS", "holds personal data"): 40,
            ("EMAIL_ADDRESS, US_SSN", "holds personal data"): 20,
            ("", "could not be scanned: the scan failed with ValueError"): 20,
            ("", "could not be scanned: it is not UTF-8"): 20,
        }
        assert {each.attribute for each in quarantine.values} == {"pii"}
        assert quarantine.values[0].examples[:2] == ["a.jsonl, row 2", "a.jsonl, row 7"]
        told = encode({"quarantine": [each.to_json() for each in quarantine.values]})
        assert b"a@" not in told


def test_of_a_conversation_each_message_is_scanned_as_it_was_said() -> None:
    """In the record's JSON a line break is ``\\n``, which would stand before the next word."""
    said = [{"role": "user", "content": "line\n9"}, {"role": "assistant", "content": "sure"}]
    seen: list[list[list[str]]] = []

    def ask(batch: list[list[str]]) -> Answer:
        seen.append(batch)
        return [[] for _ in batch]

    content = chat.encode(said)
    assert list(
        PiiFilter(SCAN, Quarantine(), refuse=True, rows="chat").of(records([content]), [ask])
    )
    assert seen == [[["line\n9", "sure"]]]
    with pytest.raises(UsageError, match="no text"):
        PiiFilter(SCAN, Quarantine(), refuse=True, rows="images")


def test_processes_scan_and_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The processes themselves, started in a folder with modules of names that they import."""
    for name in ("json", "spacy", "re"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scan_module, "BATCH_RECORDS", 2)
    started: list[scan_module._Scanner] = []
    start = scan_module._Scanner.__enter__
    monkeypatch.setattr(
        scan_module._Scanner, "__enter__", lambda self: (started.append(self), start(self))[1]
    )
    contents = [b"fine", "jörg@example.org".encode(), b"\xff", b"card 4111 1111 1111 1111", b"ok"]
    quarantine = Quarantine()
    kept = PiiFilter(SCAN, quarantine, refuse=False).of(records(contents))
    assert [each.content for each in kept] == [b"fine", b"ok"]
    assert quarantine.records == 3
    assert started
    assert all(each._process.poll() is not None for each in started)
    gone = scan_module._Scanner(SCAN)
    gone._process.kill()
    with pytest.raises(CouldNotCheck, match="ended with code -9"):
        gone([["text"]])
    with gone:
        pass
