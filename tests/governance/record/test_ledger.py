"""The ledger: one encoding per leaf, no gaps, a signed head."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Malformed, Untrusted
from govray.governance.formats import canonical_json, merkle
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.signed_note import verify_checkpoint
from govray.governance.record.ledger import (
    MAX_SQUARED_NORM,
    AnyLeaf,
    CorpusUse,
    GradientNorms,
    Leaf,
    Ledger,
    MeasuredPass,
    origin,
    read_leaves,
)
from tests.support.table import each_row
from tests.support.world import sign_ledger

DIGESTS = [canonical_json.sha256(bytes([i])) for i in range(4)]


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


def norms(step: int = 0, branch: int = 0, **changes: Any) -> GradientNorms:
    fields: dict[str, Any] = {
        "branch": branch,
        "step": step,
        "passes": (MeasuredPass(rank=0, stream=DIGESTS[2], corpora={"alpha": 3}),),
        "squared_norms": {"alpha": {"embedding": 0.25, "head": 3.0}},
    }
    return GradientNorms(**fields | changes)


measured = st.fixed_dictionaries(
    {
        "passes": st.lists(
            st.builds(
                MeasuredPass,
                rank=st.integers(0, 3),
                stream=st.sampled_from(DIGESTS),
                corpora=st.dictionaries(
                    st.sampled_from(["alpha", "beta-2"]), st.integers(1, 99), min_size=1
                ),
            ),
            min_size=1,
            max_size=4,
        ).map(lambda passes: tuple(sorted(passes, key=lambda p: (p.rank, p.stream)))),
        "squared_norms": st.dictionaries(
            st.sampled_from(["alpha", "beta-2"]),
            st.dictionaries(
                st.sampled_from(["embedding", "block.0", "adapter:alpha", "tête"]),
                st.floats(0, MAX_SQUARED_NORM),
                min_size=1,
            ),
            min_size=1,
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


def test_golden_line_of_gradient_norms() -> None:
    two = MeasuredPass(rank=1, stream=DIGESTS[2], corpora={"alpha": 1, "beta": 2})
    squares = {"beta": {"head": 0.1}, "alpha": {"head": 3.0, "adapter:a": 1e-9, "embedding": 0.0}}
    assert (
        norms(50, passes=(*norms().passes, two), squared_norms=squares).line
        == (
            '{"branch":0,"kind":"gradientNorms","passes":['
            f'{{"corpora":{{"alpha":3}},"rank":0,"stream":"{DIGESTS[2]}"}},'
            f'{{"corpora":{{"alpha":1,"beta":2}},"rank":1,"stream":"{DIGESTS[2]}"}}],'
            '"squaredNorms":{"alpha":{"adapter:a":1e-9,"embedding":0,"head":3},'
            '"beta":{"head":0.1}},"step":50}'
        ).encode()
    )


@given(st.lists(st.tuples(changes, st.none() | measured), max_size=6))
def test_data_round_trips(drawn: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
    steps = [leaf(i, **used) for i, (used, _) in enumerate(drawn)]
    samples = [norms(i, **found) for i, (_, found) in enumerate(drawn) if found is not None]
    numbered: list[AnyLeaf] = []
    for step in steps:
        numbered += [step, *(n for n in samples if n.step == step.step)]
    ledger = Ledger("r", numbered)
    assert read_leaves(ledger.data) == tuple(numbered)
    assert ledger.steps == tuple(steps)
    assert ledger.norms == tuple(samples)
    assert ledger.size == len(numbered)
    assert ledger.root == merkle.root([one.line for one in numbered])
    # Steps are written without the encoder's checks, which could find nothing.
    assert [one.line for one in numbered] == [canonical_json.encode(n.to_json()) for n in numbered]


def test_the_head_is_signed_under_the_runs_name() -> None:
    signer, ledger = LocalSigner.generate(), Ledger("run-1", [leaf(0), leaf(1)])
    note = sign_ledger(ledger, signer)
    head = verify_checkpoint(note, signer.public_key, origin=origin("run-1"))
    assert (head.size, head.root) == (2, ledger.root)
    assert note.startswith(b"govray.dev/ledger/run-1\n2\n")
    with pytest.raises(Untrusted):
        verify_checkpoint(note, signer.public_key, origin=origin("run-2"))


def test_branches_count_from_zero_each() -> None:
    one = [leaf(0), norms(0), leaf(1), leaf(0, branch=1), norms(0, branch=1)]
    both = [*one, leaf(2), leaf(1, branch=1)]
    assert read_leaves(Ledger("r", both).data) == tuple(both)


def lines(*chosen: AnyLeaf) -> bytes:
    return Ledger("r", chosen).data


SAMPLED = lines(leaf(0), norms(0))


@each_row(
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
        (lines(norms(0)), "line 1: gradient norms .* step 0"),
        (lines(leaf(0), norms(1)), "line 2: gradient norms .* step 1"),
        (lines(leaf(0), norms(0, branch=1)), "line 2: gradient norms"),
        (lines(leaf(0), norms(0), norms(0)), "line 3: gradient norms"),
        (lines(leaf(0), leaf(1), norms(0)), "line 3: gradient norms"),
        (lines(leaf(0), norms(0), leaf(2)), "line 3: step 2 where step 1"),
        (SAMPLED.replace(b'"gradientNorms"', b'"lossNorms"'), "line 2.*kind"),
        (SAMPLED.replace(b'"kind":"gradientNorms",', b""), "line 2"),
        (lines(leaf(0)).replace(b'"plan"', b'"kind":"step","plan"'), "line 1.*unknown"),
        (SAMPLED.replace(b'"kind"', b'"host":"a","kind"'), "line 2.*host"),
        (SAMPLED.replace(b"0.25", b"-0.25"), "line 2.*embedding"),
        (SAMPLED.replace(b"0.25", b"0.250"), "line 2.*canonical"),
        (SAMPLED.replace(b"0.25", b"-0"), "line 2.*minus zero"),
        (SAMPLED.replace(b"0.25", b"NaN"), "line 2"),
        (SAMPLED.replace(b"0.25", b"1e999"), "line 2.*finite"),
        (SAMPLED.replace(b"0.25", b"1e+21"), "line 2.*embedding"),
        (SAMPLED.replace(b"0.25", b'"0.25"'), "line 2.*embedding"),
        (SAMPLED.replace(b'{"embedding":0.25,"head":3}', b"{}"), "line 2.*alpha"),
        (SAMPLED.replace(b'{"alpha":3}', b'{"alpha":0}'), "line 2.*alpha"),
        (SAMPLED.replace(b'{"alpha":3}', b"{}"), "line 2.*corpora"),
        (
            lines(leaf(0), norms(0, passes=norms().passes * 2)).replace(b'k":0', b'k":1', 1),
            "sorted",
        ),
    ],
)
def test_what_is_not_a_ledger_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        read_leaves(data)
