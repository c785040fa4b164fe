"""Folders that their job made to cost the attestor, or to break it: refused at small expense.

The job posts what it wrote, so its commit is the registered one. What a folder of files does to
whoever copies it is in test_staging.py.
"""

from __future__ import annotations

import json
import os
import re
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from govray.errors import CouldNotCheck
from govray.governance.formats import canonical_json
from govray.governance.record.ledger import Ledger
from govray.platform.attestor.confinement import ParserLimits
from govray.platform.attestor.parser import confined
from tests.support.attesting import ended
from tests.support.deployment import Deployment
from tests.support.in_time import in_time

SECONDS = 120
MEMORY = 1 << 30
NESTED = b"[" * 1_000_000 + b"]" * 1_000_000
Change = Callable[[Path], object]


def _with(name: str, data: bytes | Callable[[bytes], bytes]) -> Change:
    """Write a file of the folder, and its commit's manifest to fit. ``COMMIT`` is the commit."""

    def change(run: Path) -> None:
        commit = max(run.glob("checkpoint_*"))
        path = run / name.replace("COMMIT", commit.name)
        new = data if isinstance(data, bytes) else data(path.read_bytes())
        path.write_bytes(new)
        inside = name.removeprefix("COMMIT/")
        if inside not in (name, "manifest.json"):
            manifest = json.loads((commit / "manifest.json").read_bytes())
            manifest["files"][inside] = {
                "digest": canonical_json.sha256(new),
                "size": len(new),
            }
            (commit / "manifest.json").write_bytes(canonical_json.encode(manifest))

    return change


def _length(length: int) -> Callable[[bytes], bytes]:
    """A tensor file whose header says that it has so many bytes."""
    return lambda data: length.to_bytes(8, "little") + data[8:]


def _header(text: bytes) -> Callable[[bytes], bytes]:
    return lambda data: len(text).to_bytes(8, "little") + text


def _hole(name: str, size: int) -> Change:
    return lambda run: os.truncate(run / name, size)


def _named(name: bytes) -> Change:
    return lambda run: (run / "record" / os.fsdecode(name)).write_bytes(b"x")


def _many(run: Path) -> None:
    for each in range(400):
        (run / "record" / f"{each}").touch()


def _without_last_steps(run: Path) -> None:
    """It says less of what the weights hold, and all else fits."""
    commit = max(run.glob("checkpoint_*"))
    kept = (commit / "ledger.jsonl").read_bytes().splitlines(keepends=True)[:4]
    ledger = Ledger.read(run.name, b"".join(kept))
    head = {"size": ledger.size, "root": f"sha256:{ledger.root.hex()}"}
    _with("COMMIT/ledger.jsonl", ledger.data)(run)
    state = json.loads((commit / "state.json").read_bytes()) | {"ledger": head}
    _with("COMMIT/state.json", canonical_json.encode(state))(run)


WEIGHTS = "COMMIT/model.safetensors"
KINDS: dict[str, tuple[Change, str]] = {
    "a hole for a record": (_hole("record/policy.dsse.json", 1 << 42), "more bytes than there is"),
    "a large record": (_hole("record/run.json", 80 << 20), "run.json: 83886080 bytes of JSON"),
    "a nested record": (_with("record/run.json", NESTED), "run.json: "),
    "a nested policy": (_with("record/policy.dsse.json", NESTED), "policy.dsse.json"),
    "a nested root": (_with("record/root.json", NESTED), "root.json"),
    "a nested state": (_with("COMMIT/state.json", NESTED), "state.json: "),
    "a nested ledger": (_with("COMMIT/ledger.jsonl", NESTED), "ledger"),
    "a ledger of nothing": (_with("COMMIT/ledger.jsonl", b"{}\n" * 300_000), "ledger"),
    "a long number": (
        _with("record/run.json", b'{"schema":' + b"9" * 5_000_000 + b"}"),
        "run.json: ",
    ),
    "a header beyond the file": (_with(WEIGHTS, _length(1 << 63)), "safetensors"),
    "a header of gigabytes": (_with(WEIGHTS, _length(1 << 33)), "safetensors"),
    "a nested header": (_with(WEIGHTS, _header(NESTED)), "safetensors"),
    "a header that is none": (_with(WEIGHTS, _header(b"\xff" * 999)), "safetensors"),
    "a short ledger": (
        _without_last_steps,
        "its ledger ends with step [0-9], ",
    ),
    "many files": (_many, "more than 300 files"),
    "a name of two lines": (_named(b"a\nb\x1b[31m"), "not a plain relative file name"),
    "a name that is no text": (_named(b"\xff\xfe"), "not a plain relative file name"),
}
BY_THE_PARSER = ("a large record", "a nested state", "a nested header")


def _limited(room: Any) -> Any:
    settings = room.attestor.settings
    limits = settings.limits.model_copy(update={"bytes": 1 << 30, "files": 300})
    limited = settings.model_copy(update={"limits": limits})
    return replace(room, attestor=replace(room.attestor, settings=limited))


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_folder_is_refused_at_small_expense(
    alone: Path, deployment: Deployment, tmp_path: Path, kind: str
) -> None:
    change, why = KINDS[kind]
    with ended(alone, deployment, tmp_path, change) as room:
        room = _limited(room)
        if kind in BY_THE_PARSER:
            limits = ParserLimits(memory=MEMORY, seconds=SECONDS)
            room = room.with_parser(confined(limits))
        before = _peak()
        with in_time(SECONDS):
            done = room.attest()

    assert done.state == "NOT_ATTESTED"
    assert re.search(why, done.why or "")
    assert (done.why or "").isprintable()
    assert _peak() - before < MEMORY
    assert not room.model.exists()
    assert not [each for each in room.attestor.settings.staging.iterdir() if each.is_dir()]


def test_a_commit_that_is_none_is_tried_again_and_costs_no_more(
    alone: Path, deployment: Deployment, tmp_path: Path
) -> None:
    """It may be on its way, where storage is slow."""
    change = _with("COMMIT/manifest.json", NESTED)
    with (
        ended(alone, deployment, tmp_path, change) as room,
        in_time(SECONDS),
        pytest.raises(CouldNotCheck, match="no whole checkpoint"),
    ):
        _limited(room).attest()


def test_control_within_the_same_limits_an_honest_folder_is_attested(
    alone: Path, deployment: Deployment, tmp_path: Path
) -> None:
    same = _with("record/run.json", lambda data: data)
    with ended(alone, deployment, tmp_path, same) as room:
        assert _limited(room).attest().state == "ATTESTED"


def _peak() -> int:
    """Bytes that this process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
