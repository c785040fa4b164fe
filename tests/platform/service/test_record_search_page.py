"""Asking without scripts whether a text was used: the route's answer, and the text nowhere else."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from urllib.parse import quote_plus

import pytest
from sqlalchemy import inspect, text
from sqlmodel import Session

from tests.support.library import Library, library
from tests.support.people import PAGE

OWN = {"sec-fetch-site": "same-origin"}
SECRET = "a very private sentence\nover two lines é"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with library(tmp_path_factory.mktemp("asked")) as made:
        yield made


def asked(shelf: Library, kind: str, body: str, **headers: str) -> tuple[int, str]:
    answer = shelf.service.client(kind, **PAGE, **(headers or OWN)).post(
        "/search",
        content=body.encode(),
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    return answer.status_code, answer.text


def form(given: str) -> str:
    """As a browser sends it: lines end with CRLF."""
    return "text=" + quote_plus(given.replace("\n", "\r\n"))


@pytest.mark.parametrize("kind", ["auditor", "supplier", "other supplier"])
@pytest.mark.parametrize("record", ["acme/0/0", "alpha/0/0", "gamma/0/0", "nowhere/0/0"])
def test_it_answers_as_the_route_does(shelf: Library, kind: str, record: str) -> None:
    told = shelf.post(kind, "/records:search", json={"text": record}).json()
    status, page = asked(shelf, kind, form(record))
    assert status == 200
    assert ("Found in" in page) == told["found"]
    assert ("Not found in the recorded data" in page.partition("What an answer")[0]) != told[
        "found"
    ]
    assert page.count("/attestations/") == len(told["sightings"])
    assert told["sha256"] in page


def test_a_text_is_found_in_any_of_its_forms(shelf: Library) -> None:
    """The script sends the hashes of a text as typed, composed and decomposed."""
    known, unknown = (hashlib.sha256(each).hexdigest() for each in (b"acme/0/0", b"nowhere"))
    for sent, found in ((f"{unknown},{known}", True), (unknown, False), (known, True)):
        status, page = asked(shelf, "auditor", f"sha256={sent}")
        assert (status, "Found in" in page) == (200, found)
    for wrong in ("", known[1:], f"{known},", ",".join([known] * 4)):
        assert asked(shelf, "auditor", f"sha256={wrong}")[0] == 422


def test_the_page_says_where_near_copies_are_found(shelf: Library) -> None:
    for kind in ("auditor", "supplier", "public"):
        page = shelf.service.client(kind, **PAGE).get("/search").text
        assert "govray trace FILE --model MODEL --trust-root ROOT --corpora CORPORA" in page
    # Without an answer the section is empty, so that it takes no room.
    page = shelf.service.client("auditor", **PAGE).get("/search").text
    assert 'aria-label="Answer"></section>' in page
    assert 'method="post"' in page, "a text never stands in an address"


def test_the_text_is_neither_stored_nor_logged(
    shelf: Library, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert asked(shelf, "auditor", form(SECRET))[0] == 200
    assert asked(shelf, "auditor", form(SECRET), **{"sec-fetch-site": "cross-site"})[0] == 403
    parts = ("very private", quote_plus("very private"), "over two lines")
    assert not any(part in record.getMessage() for record in caplog.records for part in parts)
    with Session(shelf.service.engine) as session:
        connection = session.connection()
        tables = inspect(connection).get_table_names()
        whole = " ".join(
            str(row)
            for table in tables
            for row in connection.execute(text(f'SELECT * FROM "{table}"'))
        )
    assert len(whole) > 10_000, "the control: there is something to look through"
    assert not any(part in whole for part in parts)
