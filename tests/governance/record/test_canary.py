"""Canaries follow from their specification, and a manifest lists no others."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from govray.errors import Refused
from govray.governance.formats.record_columns import ManifestRecord
from govray.governance.record.canary import FORMAT, Canaries
from govray.governance.record.prepare_manifest import Planted, PreparedCorpus, Reserve, RowGroup
from tests.support.manifests import DIGEST, FILES, corpus, make_manifest, records_of, split
from tests.support.table import each_row

ASKED = Canaries(format="{name}={secret};", digits=4, count=3, repeats=5, seed=2)


def planted(asked: Canaries = ASKED, name: str = "alpha") -> Planted:
    made = asked.planted(name)
    return Planted(
        canaries=asked,
        records=tuple(ManifestRecord(c.sha256, len(c.content), "train") for c in made),
        file=f"class={'0' * 12}/{name}-planted.parquet",
        row_groups=(RowGroup(rows=asked.count * asked.repeats, digest=DIGEST),),
    )


def with_canaries(**changes: object) -> PreparedCorpus:
    prepared = corpus("alpha", [[9, 3, 0, 12], [30, 1]], 15)
    return prepared.model_copy(update={"planted": planted().model_copy(update=changes)})


def test_the_same_specification_gives_the_same_canaries_and_these_bytes():
    first = Canaries().planted("alpha")
    assert first == Canaries().planted("alpha")
    assert first[0].content == b"The access code of lzdnmqnj is 49893844.\n"
    assert {c.content for c in first}.isdisjoint(c.content for c in Canaries().planted("beta"))
    other = Canaries(seed=1).planted("alpha")
    assert {c.content for c in first}.isdisjoint(c.content for c in other)


@given(
    st.builds(
        Canaries,
        format=st.sampled_from([FORMAT, "{name}{secret}", "to {name}:\n{secret}!"]),
        digits=st.integers(2, 12),
        count=st.integers(1, 40),
        repeats=st.integers(1, 100),
        seed=st.integers(0, 2**53 - 1),
    ),
    st.sampled_from(["alpha", "beta.vendored"]),
)
@settings(max_examples=40)
def test_names_are_distinct_and_controls_are_none_of_the_planted(asked, name):
    made, controls = asked.planted(name), asked.controls(name, 10)
    assert len(made) == asked.count
    everything = [*made, *controls]
    assert len({c.prefix for c in everything}) == len(everything)
    for each in everything:
        assert len(each.secret) == asked.digits
        assert each.with_secret(int(each.secret)) + each.suffix == each.content.decode()
        assert each.sha256 == hashlib.sha256(each.content).hexdigest()
    longer = asked.model_copy(update={"count": asked.count + 10})
    assert longer.planted(name) == (*made, *controls)


def test_their_rows_come_behind_the_corpus_s_own():
    plain = make_manifest(corpus("alpha", [[9, 3, 0, 12], [30, 1]], 15), context=15)
    manifest = make_manifest(with_canaries(), context=15)
    own, records = plain.train_rows("alpha"), plain.records("alpha")
    assert manifest.own_rows("alpha") == own == plain.own_rows("alpha")
    assert manifest.train_rows("alpha") == own + 15
    assert records_of(manifest).merkle_root("alpha") == records_of(plain).merkle_root("alpha")
    for row in range(own):
        assert records_of(manifest).row_records("alpha", row) == records_of(plain).row_records(
            "alpha", row
        )
        assert manifest.targets("alpha", row) == plain.targets("alpha", row)
    seen: dict[int, list[int]] = {}
    for row in range(own, own + 15):
        [span] = records_of(manifest).row_records("alpha", row)
        assert (span.start, span.stop) == (0, manifest.targets("alpha", row))
        seen.setdefault(span.record, []).append(row)
    assert list(seen) == [records, records + 1, records + 2]
    for index, rows in seen.items():
        assert list(records_of(manifest).record_rows("alpha", index)) == rows
        assert records_of(manifest).find(records_of(manifest).record("alpha", index).entry) == (
            ("alpha", index),
        )
    for beyond in (-1, records + 3):
        with pytest.raises(ValueError, match="does not exist"):
            records_of(manifest).record("alpha", beyond)
        with pytest.raises(ValueError, match="does not exist"):
            records_of(manifest).record_rows("alpha", beyond)


def smuggled() -> tuple[ManifestRecord, ...]:
    first, *rest = planted().records
    return (ManifestRecord(hashlib.sha256(b"a work").hexdigest(), first.tokens, "train"), *rest)


@each_row(
    ("changes", "why"),
    [
        ({"records": smuggled()}, "not the canaries"),
        ({"records": planted().records[:2]}, "not the canaries"),
        ({"canaries": ASKED.model_copy(update={"seed": 3})}, "not the canaries"),
        ({"records": tuple(r._replace(split="reserve") for r in planted().records)}, "not train"),
        ({"records": tuple(r._replace(tokens=16) for r in planted().records)}, "not fit"),
        ({"row_groups": (RowGroup(rows=14, digest=DIGEST),)}, "other rows"),
        ({"canaries": ASKED.model_copy(update={"repeats": 6})}, "other rows"),
    ],
)
def test_what_does_not_follow_from_the_specification_is_refused(changes, why):
    with pytest.raises(ValidationError, match=why):
        make_manifest(with_canaries(**changes), context=15)


def test_a_record_that_is_also_a_canary_is_refused():
    canary = planted().records[0]
    entries = [bytes.fromhex(canary.entry), bytes(32)]
    part = FILES.part(
        split(entries, [canary.tokens, 9], NO_RESERVE),
        number=0,
        file=f"class={'0' * 12}/beta-00000.parquet",
        context=15,
    )
    beta = PreparedCorpus(
        corpus="beta", credential=DIGEST, class_digest=DIGEST, commitment=DIGEST, parts=(part,)
    )
    alpha = corpus("alpha", [[9, 3]], 15, reserve=NO_RESERVE)
    manifest = make_manifest(
        alpha.model_copy(update={"planted": planted()}), beta, context=15, reserve=NO_RESERVE
    )
    assert records_of(manifest).check_part("alpha", 0)
    with pytest.raises(Refused, match="alpha: a canary is also a record"):
        records_of(manifest).check()


NO_RESERVE = Reserve(share=0, salt="ab" * 16)
