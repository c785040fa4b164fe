"""Closed, strict, frozen documents with errors that a person can act on."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from govray.errors import Malformed
from govray.governance.formats import canonical_json
from govray.governance.formats.document import (
    MAX_COUNT,
    Count,
    Digest,
    Document,
    Name,
    Timestamp,
    format_time,
    parse_time,
)
from tests.support.table import each_row


class Window(Document):
    valid_from: Timestamp
    valid_until: Timestamp


class Sample(Document):
    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/test/sample/v1"

    corpus: Name
    license: str
    kind: Literal["a", "b"]
    records: Count
    root_digest: Digest
    windows: tuple[Window, ...]
    weights: dict[str, Annotated[float, Field(ge=0, le=1)]]
    source_url: str | None = None
    window: Window | None = None


WINDOW = {"validFrom": "2026-01-01T00:00:00Z", "validUntil": "2027-01-01T00:00:00Z"}
VALUE: dict[str, object] = {
    "corpus": "acme-notes",
    "license": "MIT",
    "kind": "a",
    "records": "12",
    "rootDigest": "sha256:" + "0" * 64,
    "windows": [WINDOW],
    "weights": {"head": 1, "block.0": 0.25},
}


def test_json_says_camel_case_and_python_says_snake_case() -> None:
    document = Sample.from_json(VALUE)
    assert document.root_digest == VALUE["rootDigest"]
    assert document.windows == (
        Window(valid_from="2026-01-01T00:00:00Z", valid_until="2027-01-01T00:00:00Z"),
    )
    assert document.to_json() == VALUE
    assert "sourceUrl" not in document.to_json()


def test_a_source_for_people_says_snake_case_and_nothing_else() -> None:
    source = {
        **{key: VALUE[key] for key in ("corpus", "license", "kind", "records", "weights")},
        "root_digest": VALUE["rootDigest"],
        "windows": [],
    }
    assert Sample.from_source(source).to_json() == {**VALUE, "windows": []}
    with pytest.raises(Malformed):
        Sample.from_source(VALUE)
    with pytest.raises(Malformed):
        Sample.from_json(source)


text = st.text(st.characters(exclude_categories=["Cs"]))
samples = st.fixed_dictionaries(
    {
        "corpus": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True),
        "license": text,
        "kind": st.sampled_from(["a", "b"]),
        "records": st.integers(0, MAX_COUNT),
        "root_digest": st.just("sha256:" + "f" * 64),
        "windows": st.just(()),
        "weights": st.dictionaries(text, st.floats(0, 1), max_size=4),
        "source_url": st.none() | text,
    }
).map(lambda fields: Sample(**fields))


@given(samples)
def test_a_document_survives_its_bytes(document: Sample) -> None:
    data = canonical_json.encode(document.to_json())
    back = Sample.from_json(canonical_json.parse_canonical(data))
    assert back == document
    assert canonical_json.encode(back.to_json()) == data


@each_row(
    ("change", "message"),
    [
        ({"licence": "MIT"}, r"unknown field 'licence' \(did you mean 'license'\?\)"),
        ({"windows": [{**WINDOW, "validUntill": 1}]}, r"'windows\[0\]\.validUntill' \(did you"),
        ({"window": {**WINDOW, "validfrom": 1}}, r"mean 'validFrom'\?"),
        ({"root_digest": "sha256:" + "0" * 64}, r"unknown field 'root_digest' \(did you mean"),
        ({"entirelyElse": 1}, "unknown field 'entirelyElse'$"),
        ({"records": 12}, "'records': should be a count"),
        ({"records": "012"}, "'records': should be a count"),
        ({"records": "-1"}, "'records': should be a count"),
        ({"records": "1_0"}, "'records': should be a count"),
        ({"records": "١"}, "'records': should be a count"),
        ({"records": str(MAX_COUNT + 1)}, "'records'"),
        ({"license": 3}, "'license': input should be a valid string"),
        ({"kind": "c"}, "'kind'"),
        ({"corpus": "../up"}, "'corpus'"),
        ({"corpus": "a\n"}, "'corpus'"),
        ({"corpus": "a" * 129}, "'corpus'"),
        ({"rootDigest": "sha256:" + "A" * 64}, "'rootDigest'"),
        ({"rootDigest": "sha256:" + "0" * 64 + "\n"}, "'rootDigest'"),
        ({"windows": {}}, "'windows'"),
        ({"weights": {"head": 1.5}}, "'weights.head'"),
        ({"weights": {"head": True}}, "'weights.head'"),
        ({"weights": {"head": "1"}}, "'weights.head'"),
        ({"weights": {"head": float("nan")}}, "JSON"),
        ({"sourceUrl": None}, "'sourceUrl' is null"),
        ({"weights": {"head": None}}, "'weights.head' is null"),
        ({"windows": [{**WINDOW, "validFrom": "2026-01-01"}]}, "'2026-01-01' is not a time"),
        ({"windows": [{**WINDOW, "validFrom": "2026-02-30T00:00:00Z"}]}, "is not a time"),
    ],
)
def test_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(Malformed) as caught:
        Sample.from_json({**VALUE, **change}, where="credential.json")
    assert re.search(message, caught.value.what)
    assert caught.value.where == "credential.json"


class Ratio(Document):
    ratio: float


@pytest.mark.parametrize("ratio", [float("nan"), float("inf"), float("-inf")])
def test_a_float_is_finite(ratio: float) -> None:
    with pytest.raises(ValidationError):
        Ratio(ratio=ratio)
    with pytest.raises(Malformed):
        Ratio.from_json({"ratio": ratio})


@given(st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.just(UTC)))
def test_text_order_is_time_order(one: datetime, other: datetime) -> None:
    one, other = one.replace(microsecond=0), other.replace(microsecond=0)
    assert (format_time(one) < format_time(other)) == (one < other)


@each_row(
    "text",
    [
        "2026-01-01T00:00:00",
        "2026-01-01T00:00:00+00:00",
        "2026-01-01T00:00:00.0Z",
        "2026-1-1T00:00:00Z",
        "2026-01-01 00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T00:00:60Z",
        "20260101T000000Z",
        "٢٠٢٦-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z\n",
        "",
    ],
)
def test_other_forms_of_time_are_refused(text: str) -> None:
    with pytest.raises(Malformed):
        parse_time(text)


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(Malformed):
        format_time(datetime(2026, 1, 1))
