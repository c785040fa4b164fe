"""What a caller may not read, and what is nowhere: one answer, on pages as in the API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import true

from govray.platform.service.visible import visible_models
from tests.support.library import Library, library
from tests.support.people import PAGE

NOWHERE = "0" * 64

# An address with the name that is hidden, and the same with a name that is nowhere.
PAIRS = [
    ("/v1/models/{}", "guarded", "nothing"),
    ("/v1/models/{}/versions", "guarded", "nothing"),
    ("/v1/models/{}/versions/1.0.0", "guarded", "nothing"),
    ("/v1/models/guarded/versions/{}", "1.0.0", "9.9.9"),
    ("/v1/models/guarded/versions/{}/lineage", "1.0.0", "9.9.9"),
    ("/v1/models/guarded/versions/{}/layers/head", "1.0.0", "9.9.9"),
    ("/v1/models/guarded/versions/{}/memorization", "1.0.0", "9.9.9"),
    ("/v1/attestations/{}", "{digest}", NOWHERE),
    ("/v1/attestations/{}/lineage", "{digest}", NOWHERE),
    ("/v1/attestations/{}/layers/head", "{digest}", NOWHERE),
    ("/v1/attestations/{}/memorization", "{digest}", NOWHERE),
    ("/v1/ledgers/{}", "run-guarded", "run-nowhere"),
    ("/v1/ledgers/{}/entries/0", "run-guarded", "run-nowhere"),
    ("/v1/ledgers/{}/proofs/inclusion?index=0", "run-guarded", "run-nowhere"),
    ("/models/{}", "guarded", "nothing"),
    ("/models/{}/1.0.0", "guarded", "nothing"),
    ("/models/guarded/{}", "1.0.0", "9.9.9"),
    ("/attestations/{}", "{digest}", NOWHERE),
]
OF_SUPPLIERS = [
    ("/v1/corpora/{}", "alpha", "omega"),
    ("/corpora/{}", "alpha", "omega"),
]
SAME = [
    ("/models/first/9.9.9", "/v1/models/first/versions/9.9.9"),
    ("/models/guarded/1.0.0", "/v1/models/guarded/versions/1.0.0"),
    ("/models/guarded", "/v1/models/guarded"),
    (f"/attestations/{NOWHERE}", f"/v1/attestations/{NOWHERE}/lineage"),
]
"""A page, and the address of the API that has the same."""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with library(tmp_path_factory.mktemp("hidden")) as made:
        yield made


def said(shelf: Library, kind: str, path: str) -> tuple[int, str, dict[str, str]]:
    accept = {} if path.startswith("/v1/") else PAGE
    answer = shelf.service.client(kind, **accept).get(path)
    of_it = {"content-length", "x-request-id"}
    headers = {k: v for k, v in answer.headers.items() if k not in of_it}
    return answer.status_code, answer.text, headers


@pytest.mark.parametrize("kind", ["supplier", "public"])
@pytest.mark.parametrize(("path", "hidden", "nowhere"), PAIRS)
def test_hidden_and_absent_answer_alike(
    shelf: Library, kind: str, path: str, hidden: str, nowhere: str
) -> None:
    """``guarded`` used none of acme-legal's corpora, and is not public."""
    digest = shelf.digest("guarded").removeprefix("sha256:")
    hidden = hidden.format(digest=digest)
    there, elsewhere = (said(shelf, kind, path.format(each)) for each in (hidden, nowhere))
    assert there[0] == elsewhere[0] == 404
    assert there[1].replace(hidden, nowhere) == elsewhere[1]
    assert there[2] == elsewhere[2]
    assert digest == hidden or digest not in there[1]
    if path not in ("/v1/attestations/{}",):  # the control: it is there
        assert said(shelf, "auditor", path.format(hidden))[0] == 200


@pytest.mark.parametrize(("path", "hidden", "nowhere"), OF_SUPPLIERS)
def test_a_corpus_of_another_is_like_none(
    shelf: Library, path: str, hidden: str, nowhere: str
) -> None:
    there, elsewhere = (said(shelf, "supplier", path.format(e)) for e in (hidden, nowhere))
    assert there[0] == 404
    assert (there[1].replace(hidden, nowhere), there[2]) == (elsewhere[1], elsewhere[2])


@pytest.mark.parametrize("kind", ["supplier", "public"])
@pytest.mark.parametrize(("page", "route"), SAME)
def test_a_page_says_what_the_route_says(shelf: Library, kind: str, page: str, route: str) -> None:
    problem = shelf.service.client(kind).get(route).json()
    text = said(shelf, kind, page)[1].replace("&#39;", "'")
    assert problem["detail"] in text
    assert problem["do"] in text


def test_without_the_rule_a_hidden_model_is_shown(
    shelf: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the rule is the one function, for pages and routes."""
    monkeypatch.setattr(visible_models, "versions", lambda _: true())
    assert said(shelf, "public", "/v1/models/guarded/versions/1.0.0")[0] == 200
    monkeypatch.setattr(visible_models, "attestations", lambda _: true())
    assert said(shelf, "public", "/v1/ledgers/run-guarded")[0] == 200
