"""The ledger: one encoding per leaf, no gaps, a signed head."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Malformed, Untrusted
from govray.governance import canonical, merkle
from govray.governance.keys import LocalSigner
from govray.governance.ledger import CorpusUse, Leaf, Ledger, origin, read_leaves
from govray.governance.note import verify_checkpoint

DIGESTS = [canonical.sha256(bytes([i])) for i in range(4)]


def leaf(step: int = 0, branch: int = 0, **changes: Any) -> Leaf:
    fields: dict[str, Any] = {
        "branch": branch,
        "step": step,
        "world_size": 2,
        "policy": DIGESTS[0],
        "plan": DIGESTS[1],
        "streams": {DIGESTS[2]: (3 * step, 3 * step + 3)},
        "corpora": {"alpha": CorpusUse(rows=3, targets=20)},
    }
    return Leaf(**fields | changes)


ranges = st.tuples(st.integers(0, 2**40), st.integers(1, 100)).map(lambda t: (t[0], t[0] + t[1]))
changes = st.fixed_dictionaries(
    {
        "world_size": st.integers(1, 64),
        "policy": st.sampled_from(DIGESTS),
        "streams": st.dictionaries(st.sampled_from(DIGESTS), ranges),
        "corpora": st.dictionaries(
            st.sampled_from(["alpha", "beta-2"]),
            st.builds(CorpusUse, rows=st.integers(1, 99), targets=st.integers(1, 9999)),
        ),
    }
)


def test_golden_line() -> None:
    assert (
        leaf(1).line
        == (
            f'{{"branch":0,"corpora":{{"alpha":{{"rows":3,"targets":20}}}},"plan":"{DIGESTS[1]}",'
            f'"policy":"{DIGESTS[0]}","step":1,"streams":{{"{DIGESTS[2]}":[3,6]}},"worldSize":2}}'
        ).encode()
    )


@given(st.lists(changes, max_size=6))
def test_data_round_trips(drawn: list[dict[str, Any]]) -> None:
    numbered = [leaf(i, **one) for i, one in enumerate(drawn)]
    ledger = Ledger("r", numbered)
    assert read_leaves(ledger.data) == tuple(numbered)
    assert ledger.size == len(numbered)
    assert ledger.root == merkle.root([one.line for one in numbered])


def test_the_head_is_signed_under_the_runs_name() -> None:
    signer, ledger = LocalSigner.generate(), Ledger("run-1", [leaf(0), leaf(1)])
    note = ledger.sign(signer)
    head = verify_checkpoint(note, signer.public_key, origin=origin("run-1"))
    assert (head.size, head.root) == (2, ledger.root)
    assert note.startswith(b"govray.dev/ledger/run-1\n2\n")
    with pytest.raises(Untrusted):
        verify_checkpoint(note, signer.public_key, origin=origin("run-2"))


def test_branches_count_from_zero_each() -> None:
    both = [leaf(0), leaf(1), leaf(0, branch=1), leaf(2), leaf(1, branch=1)]
    assert read_leaves(Ledger("r", both).data) == tuple(both)


def lines(*chosen: Leaf) -> bytes:
    return Ledger("r", chosen).data


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (lines(leaf(0))[:-1], "cut off"),
        (lines(leaf(1)), "line 1: step 1 where step 0"),
        (lines(leaf(0), leaf(2)), "line 2: step 2 where step 1"),
        (lines(leaf(0), leaf(0)), "line 2: step 0 where step 1"),
        (lines(leaf(1), leaf(0)), "line 1"),
        (lines(leaf(0, branch=1)), "branch 1"),
        (lines(leaf(0), leaf(0, branch=2)), "branch 2"),
        (b"\n", "line 1"),
        (lines(leaf(0)) + b"\n", "line 2"),
        (lines(leaf(0)).replace(b'"step":0', b'"step": 0'), "line 1"),
        (lines(leaf(0)).replace(b'"step":0', b'"step":"0"'), "line 1.*step"),
        (lines(leaf(0)).replace(b'"worldSize"', b'"time":1,"worldSize"'), "line 1.*time"),
        (lines(leaf(0)).replace(b'"rows":3', b'"rows":0'), "line 1.*rows"),
        (lines(leaf(0)).replace(b"[0,3]", b"[3,3]"), "line 1.*empty"),
        (lines(leaf(0)).replace(b"\n", b"\r\n"), "line 1"),
        (b"\xff\n", "line 1"),
    ],
)
def test_what_is_not_a_ledger_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        read_leaves(data)
