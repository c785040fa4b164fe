"""The prepare manifest: a document that contradicts itself is refused, and the reserve is drawn."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Malformed
from govray.governance.formats.sip_hash import sip_hash
from govray.governance.record.prepare_manifest import Manifest, Reserve
from tests.support.manifests import RESERVE, corpus, make_manifest
from tests.support.table import each_row


@given(
    st.floats(0, 1, exclude_max=True),
    st.binary(min_size=16, max_size=64),
    st.binary(min_size=32, max_size=32),
)
def test_the_reserve_is_the_inequality_it_says(share: float, salt: bytes, record: bytes) -> None:
    reserve = Reserve(share=share, salt=salt.hex())
    key = hashlib.sha256(salt).digest()[:16]
    [drawn] = sip_hash(key, np.frombuffer(record, "<u8").reshape(1, 4)).tolist()
    # Both sides exact: a float is a dyadic fraction.
    numerator, denominator = share.as_integer_ratio()
    assert reserve.holds(record) == (drawn * denominator < numerator * 2**64)


def test_the_reserve_has_about_its_share_and_follows_the_salt() -> None:
    entries = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(10_000))
    records = np.frombuffer(entries, np.uint8).reshape(-1, 32)
    held = RESERVE.held(records)
    # 2,500 expected with a standard deviation of 43: five of them.
    assert abs(int(held.sum()) - 2500) < 220
    assert (Reserve(share=0.25, salt="cd" * 16).held(records) != held).any()
    assert not Reserve(share=0, salt="ab" * 16).held(records).any()


@each_row(
    ("change", "says"),
    [
        (lambda m: m["corpora"].reverse(), "sorted"),
        (lambda m: m["corpora"].append(m["corpora"][1]), "distinct"),
        (lambda m: m["corpora"][0]["parts"][0].update(records=[1, 3]), "start at record 0"),
        (lambda m: m["corpora"][0]["parts"][1].update(records=[2, 5]), "start at record 8"),
        (lambda m: m["corpora"][0]["parts"].reverse(), "out of order"),
        (lambda m: m["corpora"][1]["parts"][0].update(file="class=0/../x.parquet"), "file"),
        (
            lambda m: m["corpora"][1]["parts"][0].update(file=m["corpora"][0]["parts"][0]["file"]),
            "share one shard",
        ),
        (lambda m: m["tokenizer"].update(separator=257), "separator"),
        (lambda m: m["reserve"].update(share=1.0), "share"),
        (lambda m: m["reserve"].update(salt="00"), "salt"),
        (lambda m: m["quarantine"].extend([QUARANTINED] * 2), "distinct"),
        (lambda m: m.update(context=0), "context"),
        (lambda m: m.update(note="x"), "note"),
    ],
)
def test_contradictions_are_refused(change: Any, says: str) -> None:
    assert_refused(change, says)


PARTS = [[9] * 8, [9]]


def assert_refused(change: Any, says: str) -> None:
    value = make_manifest(corpus("a", PARTS, 7), corpus("b", [[5]], 7)).to_json()
    Manifest.from_json(value)
    change(value)
    with pytest.raises(Malformed, match=says):
        Manifest.from_json(value)


QUARANTINED = {"corpus": "c", "rule": "unknown", "reason": "no licence", "records": 3}
