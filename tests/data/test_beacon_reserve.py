"""Preparation under a beacon: credentials first, then the pulse, and no draw of its own."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from govray.data import corpus
from govray.data.admission import SEEN
from govray.errors import Refused, Untrusted, UsageError
from govray.governance.formats.document import format_time
from govray.governance.formats.keys import LocalSigner
from govray.governance.trust.beacon import UsedPulse
from tests.support.beaconed import beacon_of, pulse_of
from tests.support.shelf import NOW, Shelf

BELL = LocalSigner.generate()
NAMED = beacon_of(BELL, genesis="2026-11-30T00:00:00Z", period=3600, delay=3600)
ISSUED = NOW - timedelta(hours=2)
EARLY = NOW - timedelta(hours=1)
ROUND = 25
"""Due at `NOW`: the first hour that begins later than one after `ISSUED`."""

WAITS = "the reserve waits for beacon bell, round 25, due at 2026-12-01T00:00:00Z"
PULSE = pulse_of(BELL, ROUND)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    made = Shelf(tmp_path / "shelf")
    made.trust = replace(made.trust, root=made.trust.root.model_copy(update={"beacon": NAMED}))
    for name, hours in (("bsd", 9), ("mit", 0)):
        records = {f"{i:02}": f"{name} {i}: lorem\n".encode() for i in range(30)}
        made.add(name, records, issued=format_time(ISSUED - timedelta(hours=hours)))
    return made


def interrupt(done: int, total: int) -> None:
    if done:
        raise KeyboardInterrupt


def test_the_reserve_is_the_pulses_whatever_preparation_draws(shelf: Shelf) -> None:
    with pytest.raises(Refused, match=WAITS):
        shelf.prepare(time=EARLY)
    first = shelf.prepare("first", pulse=PULSE, salt=b"\x01" * 32)
    reserve = first.manifest.reserve
    assert reserve.pulse == UsedPulse.read(PULSE, where="pulse")
    assert reserve.drawn == "by beacon bell, round 25"
    assert sum(sum(p.splits.reserve for p in c.parts) for c in first.manifest.corpora)
    # Another draw changes nothing, and neither does the pulse once they are there.
    assert shelf.prepare("second", pulse=PULSE, salt=b"\x02" * 32).digest == first.digest
    assert shelf.prepare("first").envelope == first.envelope
    # Control: without a beacon another draw is another reserve.
    shelf.trust = replace(shelf.trust, root=shelf.trust.root.model_copy(update={"beacon": None}))
    drawn = [shelf.prepare(str(i), salt=bytes([i]) * 32).digest for i in (1, 2)]
    assert drawn[0] != drawn[1]
    # What was drawn is no reserve under the beacon, nor a pulse's one without it.
    with pytest.raises(Refused, match="the trust root names no beacon"):
        shelf.prepare("first")
    with pytest.raises(UsageError, match="no beacon of the trust root decides"):
        shelf.prepare("third", pulse=PULSE)


def test_what_was_drawn_before_there_was_a_beacon_is_not_used(shelf: Shelf) -> None:
    named = shelf.trust
    shelf.trust = replace(named, root=named.root.model_copy(update={"beacon": None}))
    shelf.prepare()
    shelf.trust = named
    with pytest.raises(Refused, match="preparation drew the reserve's salt"):
        shelf.prepare(pulse=PULSE)
    # Nor does a draft of then go on: what was packed in it has other sides.
    shelf.trust = replace(named, root=named.root.model_copy(update={"beacon": None}))
    with pytest.raises(KeyboardInterrupt):
        shelf.prepare("killed", progress=interrupt)
    shelf.trust = named
    with pytest.raises(Refused, match=WAITS):
        shelf.prepare(time=EARLY, name="new")
    killed = shelf.prepare("killed", pulse=PULSE)
    assert killed.digest == shelf.prepare("new", pulse=PULSE).digest
    # Nothing is chosen where nothing is held back.
    assert shelf.prepare("whole", reserve_share=0.0).manifest.reserve.pulse is None


def test_another_pulse_than_the_one_that_is_due_prepares_nothing(shelf: Shelf) -> None:
    with pytest.raises(Refused, match=WAITS):
        shelf.prepare(time=EARLY)
    for pulse, kind, says in (
        (pulse_of(BELL, ROUND + 1), Refused, "lead to beacon bell, round 25"),
        (pulse_of(BELL, ROUND - 1), Refused, "lead to beacon bell, round 25"),
        (pulse_of(BELL, ROUND, "gong"), Refused, "follows beacon gong"),
        (pulse_of(LocalSigner.generate(), ROUND), Untrusted, "not signed by the key"),
    ):
        with pytest.raises(kind, match=says):
            shelf.prepare(pulse=pulse)
    with pytest.raises(Refused, match="is due at 2026-12-01T00:00:00Z, after"):
        shelf.prepare(pulse=PULSE, time=NOW - timedelta(seconds=1))
    assert {each.name for each in (shelf.folder / "out").iterdir()} == {SEEN}
    assert shelf.prepare(pulse=PULSE).manifest.reserve.pulse


def test_a_supplier_who_knew_the_pulse_is_refused(shelf: Shelf) -> None:
    with pytest.raises(Refused, match=WAITS):
        shelf.prepare(time=EARLY)
    # With the pulse at hand he looks for records that it holds back, and says an earlier time.
    shutil.rmtree(shelf.corpora / "bsd")
    records = {f"{i:02}": f"aimed {i}\n".encode() for i in range(30)}
    shelf.add("bsd", records, issued=format_time(ISSUED - timedelta(hours=9)))
    with pytest.raises(Refused, match=r"'bsd': it was first here at 2026-12-01T00:00:00Z"):
        shelf.prepare(pulse=PULSE)
    # Control: if the preparer forges the note, nobody else notices.
    for note in (shelf.folder / "out" / SEEN).iterdir():
        note.write_text(format_time(EARLY))
    assert shelf.prepare(pulse=PULSE).manifest.reserve.pulse


def test_a_credential_without_a_time_waits_for_no_pulse(shelf: Shelf) -> None:
    built = corpus.build(shelf.corpora, "undated", [("0", b"lorem\n")], secret=bytes(32))
    shelf.sign(built)
    with pytest.raises(Refused, match="'undated': it states no time of issue"):
        shelf.prepare(time=EARLY)
    shelf.sign(built, issued=format_time(ISSUED))
    with pytest.raises(Refused, match=WAITS):
        shelf.prepare(time=EARLY)
