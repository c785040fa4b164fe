"""A draft as a page, a Word file and JSON: the same fields, and nothing that a browser obeys."""

from __future__ import annotations

from html.parser import HTMLParser
from io import BytesIO
from xml.etree import ElementTree
from zipfile import ZipFile

import docx
import pytest

from govray.evidence.reports.draft import HEADLINE, Draft
from govray.evidence.reports.eu_summary import eu_summary
from govray.evidence.reports.web_page import WORDS, web_page
from govray.evidence.reports.word_file import word_file
from tests.evidence.reports.conftest import DESCRIBED, Deployed, deploy

EVIL = '<script>fetch("https://evil.example")</script><img src=x onerror=alert(1)>"\'&\u202e\x07'


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(data.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Draft:
    """What issuer and provider may write, written by somebody who means harm."""
    described = DESCRIBED | {
        "alpha": DESCRIBED["alpha"]
        | {
            "content": EVIL,
            "optOutMeasures": EVIL,
            "url": "https://a.example/<script>alert(1)</script>",
            "crawlers": [{"name": EVIL, "purpose": EVIL, "behaviour": EVIL}],
        }
    }
    deployed = deploy(tmp_path_factory.mktemp("hostile") / "m", described)
    statement = deployed.verified(deployed.statement(provider=EVIL, market_date="2026-11-30"))
    return eu_summary(deployed.model, statement)


def test_a_page_has_every_field_and_says_that_it_is_a_draft(described: Deployed) -> None:
    draft = eu_summary(described.model)
    page = Page(web_page(draft))
    assert HEADLINE in page.text
    for section in draft.sections:
        assert f"{section.number} {section.title}" in page.text
    for field in draft.fields:
        assert field.label in page.text
        assert all(line in page.text for line in field.lines)
    assert page.text.count(f"{WORDS['missing']}.") == draft.count("missing")
    assert "d00.example" in page.text


def test_nothing_in_a_page_runs_or_is_fetched(hostile: Draft) -> None:
    page = Page(web_page(hostile))
    assert {tag for tag, _ in page.tags} <= {
        "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3", "h4", "p",
        "span", "div", "table", "caption", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    names = {name for _, attributes in page.tags for name in attributes}
    assert not names & {"src", "href", "onerror", "onload", "action", "style"}
    assert page.text.count('<script>fetch("https://evil.example")</script>') >= 4
    assert "\u202e" not in page.text
    assert "\\u202e" in page.text
    assert "\x07" not in page.text
    (policy,) = [a["content"] for _, a in page.tags if "http-equiv" in a]
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_a_page_that_escapes_nothing_would_be_noticed(hostile: Draft) -> None:
    """The control: with the same text put in as markup, the tags above show it."""
    data = web_page(hostile).replace(b"&lt;", b"<").replace(b"&gt;", b">")
    assert {"script", "img"} <= {tag for tag, _ in Page(data).tags}


def test_a_word_file_has_every_field(hostile: Draft) -> None:
    data = word_file(hostile)
    word = docx.Document(BytesIO(data))
    text = "\n".join(each.text for each in word.paragraphs)
    assert HEADLINE in text
    for field in hostile.fields:
        assert field.label in text
        assert field.state != "missing" or field.source.replace("\u202e", "\\u202e")[:40] in text
    cells = [cell.text for table in word.tables for row in table.rows for cell in row.cells]
    assert "d00.example" in cells
    assert text.count("<script>fetch(") >= 3
    assert "\u202e" not in text
    with ZipFile(BytesIO(data)) as parts:  # as XML, and as text in it
        for name in parts.namelist():
            if name.endswith(".xml"):
                root = ElementTree.fromstring(parts.read(name))
                assert not [each for each in root.iter() if each.tag.endswith("}script")]
