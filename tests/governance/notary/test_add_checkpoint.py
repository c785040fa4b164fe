"""The statuses of tlog-witness, one after the other, and the requests that it cannot read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.governance.formats import merkle
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.signed_note import TreeHead, read_note, sign_checkpoint
from govray.governance.notary import add_checkpoint
from govray.governance.notary.add_checkpoint import AddCheckpoint, decide
from tests.support.table import each_row

ORIGIN = "govray.dev/ledger/run-1"
LOG = LocalSigner.generate()
LINES = [f"leaf {number}".encode() for number in range(9)]


def head(size: int, lines: list[bytes] = LINES) -> TreeHead:
    return TreeHead(ORIGIN, size, merkle.root(lines[:size]))


def proof(old: int, size: int, lines: list[bytes] = LINES) -> tuple[bytes, ...]:
    if old == 0:
        return ()
    return merkle.consistency_path(old, size, lambda a, b: merkle.root(lines[a:b]))


def request(
    old: int, size: int, *, lines: list[bytes] = LINES, signer: LocalSigner = LOG
) -> AddCheckpoint:
    data = sign_checkpoint(ORIGIN, size, merkle.root(lines[:size]), signer)
    return AddCheckpoint(old, proof(old, size, lines), read_note(data), data)


def status(asked: AddCheckpoint, latest: TreeHead | None, known: bool = True) -> int:
    """Of the answer to the request as it comes over the wire."""
    parsed = AddCheckpoint.parse(asked.body())
    declined = decide(parsed, [LOG.public_key] if known else None, latest)
    return 200 if declined is None else declined.status


@given(old=st.integers(0, 9), more=st.integers(0, 9))
def test_whatever_extends_the_last_head_is_cosigned(old: int, more: int) -> None:
    size = min(9, old + more)
    assert status(request(old, size), head(old) if old else None) == 200


FORK = [*LINES[:3], b"other", *LINES[4:]]


@each_row(
    ("asked", "latest", "expected"),
    [
        (request(0, 4, signer=LocalSigner.generate()), None, 403),
        (replace(request(4, 4), old=5, proof=()), head(5), 400),
        (request(0, 4), head(3), 409),  # says how far the witness is
        (request(4, 9), head(3), 409),
        (request(4, 9), None, 409),
        (request(4, 4, lines=FORK), head(4), 409),  # the same size, another root
        (request(4, 9, lines=FORK), head(4), 422),  # a split view
        (replace(request(4, 9), proof=()), head(4), 422),
        (replace(request(4, 9), proof=proof(3, 9)), head(4), 422),
        (replace(request(0, 9), proof=proof(4, 9)), None, 422),  # empty from an empty tree
        (replace(request(4, 4), proof=proof(3, 9)), head(4), 422),
    ],
)
def test_each_refusal_has_its_status(
    asked: AddCheckpoint, latest: TreeHead | None, expected: int
) -> None:
    assert status(asked, latest) == expected


def test_an_unknown_origin_is_not_found_whoever_signed() -> None:
    assert status(request(0, 4), None, known=False) == 404


def test_control_unless_proofs_are_checked_a_split_view_is_cosigned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(add_checkpoint, "_check_proof", lambda *_: None)
    assert status(request(4, 9, lines=FORK), head(4)) == 200


def test_signatures_of_strangers_are_passed_over() -> None:
    asked = request(0, 4)
    extra = LocalSigner.generate()
    other = sign_checkpoint(ORIGIN, 4, merkle.root(LINES[:4]), extra).decode().splitlines()[-1]
    data = asked.data + f"{other}\n".encode()
    assert status(replace(asked, data=data, note=read_note(data)), None) == 200
