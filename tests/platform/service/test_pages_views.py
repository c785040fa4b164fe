"""What pages show, and to whom: the pure parts, and the HTML that each role gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from govray.platform.service.pages import rendering
from govray.platform.service.pages.charts.heatmap import heat_map
from govray.platform.service.pages.signing_in import own_path
from govray.platform.store.lineage import lineage
from tests.support.library import Library, library
from tests.support.people import PAGE


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with library(tmp_path_factory.mktemp("pages")) as made:
        yield made


def html(shelf: Library, kind: str, path: str, status: int = 200) -> str:
    answer = shelf.service.client(kind, **PAGE).get(path)
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["content-type"].startswith("text/html")
    return answer.text


def model(shelf: Library, name: str) -> str:
    return f"/attestations/{shelf.digest(name).removeprefix('sha256:')}"


# Who sees what. ``narrow`` is public; ``acme`` is the corpus of the kind "supplier".


@pytest.mark.parametrize("path", ["/experiments", "/corpora", "/runs/x", "/corpora/alpha"])
def test_what_needs_a_token_says_so(shelf: Library, path: str) -> None:
    assert "/sign-in?next=" in html(shelf, "public", path, 401)
    answer = shelf.service.client("public", **PAGE).get(path)
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_program_gets_problem_details_and_v1_never_a_page(shelf: Library) -> None:
    client = shelf.service.client("public")
    assert client.get("/nothing").headers["content-type"] == "application/problem+json"
    answer = client.get("/v1/nothing", headers=PAGE)
    assert answer.headers["content-type"] == "application/problem+json"


def test_every_page_has_a_policy_without_inline_code(shelf: Library) -> None:
    for kind, path in (("admin", "/"), ("public", "/sign-in"), ("public", "/nothing")):
        answer = shelf.service.client(kind, **PAGE).get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "no-store" in answer.headers["cache-control"]
        assert " style=" not in answer.text
        assert "onclick" not in answer.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "same-origin"}, 303),
        ({"origin": "http://testserver"}, 303),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": "http://testserver"}, 403),
        ({"origin": "https://elsewhere.example"}, 403),
        ({}, 403),
    ],
)
def test_a_form_of_another_site_is_refused(
    shelf: Library, headers: dict[str, str], status: int
) -> None:
    client = shelf.service.client("public", **PAGE)
    form = {"token": shelf.service.tokens["engineer"], "next": "/models"}
    for path in ("/sign-in", "/sign-out"):
        answer = client.post(path, data=form, headers=headers, follow_redirects=False)
        assert answer.status_code == status
        assert ("set-cookie" in answer.headers) == (status == 303)


@pytest.mark.parametrize(
    "text",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "a",
        "",
        "/x\\y",
        "/x\r\nSet-Cookie: a=b",
    ],
)
def test_after_signing_in_nobody_is_sent_elsewhere(text: str) -> None:
    assert own_path(text) == "/"


def test_hostile_text_is_escaped_and_the_escaping_is_what_does_it() -> None:
    hostile = "<script>alert(1)</script>\"'"
    source = '{% import "pieces.html" as ui %}<p title="{{ x }}">{{ x }}</p>{{ ui.badge(x) }}'
    safe = rendering._TEMPLATES.from_string(source).render(x=hostile)
    assert "<script>" not in safe
    assert "\"'" not in safe
    bare = rendering._TEMPLATES.overlay(autoescape=False)
    assert "<script>" in bare.from_string(source).render(x=hostile)  # the control


def test_the_heat_map_has_the_lineages_numbers_and_folds(shelf: Library) -> None:
    verified = shelf.model("first")
    document = lineage(verified.attestation, verified.digest, verified.replayed_by)
    whole = heat_map(document)
    assert not whole.folded
    cells = {(row.name, g): c for row in whole.rows for g, c in zip(whole.groups, row.cells)}  # noqa: B905
    for stated in verified.attestation.coverage:
        cell = cells[stated.corpus, stated.group]
        assert (cell.reach, cell.tokens) == ("direct", stated.tokens)
    direct = {(s.corpus, s.group) for s in verified.attestation.coverage}
    for place, cell in cells.items():
        assert (cell.reach == "direct") == (place in direct)
    folded = heat_map(document, fold=True)
    assert sum(row.corpora for row in folded.rows) == len(document.corpora)
    for i in range(len(whole.groups)):
        summed = sum(row.cells[i].tokens for row in whole.rows)
        assert sum(row.cells[i].tokens for row in folded.rows) == summed
    assert [row.name for row in heat_map(document, name="ALPH").rows] == ["alpha"]
    assert {r.category for r in heat_map(document, category="commercial").rows} == {"commercial"}
