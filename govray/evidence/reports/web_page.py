"""A draft as one HTML page: no script, nothing fetched, readable without colours.

The page is built as a tree and written by the standard library, which escapes what is text. Its
content security policy forbids scripts and requests, should something come through all the same.
Links of records are shown as text, so that no click leads where a hostile record points.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, tostring

from govray.evidence.reports.draft import HEADLINE, Draft, Field, Grid, State
from govray.printable import printable

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

WORDS: dict[State, str] = {
    "filled": "Filled from a record",
    "asked": "Answered by the provider",
    "missing": "Missing",
}

_STYLE = """
body { font: 1rem/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 2rem auto;
  max-width: 60rem; padding: 0 1rem; }
h1 { line-height: 1.2; } h2, h3, h4 { margin-top: 2rem; } .field { margin: 1rem 0; }
.draft { border: 2px solid #8a1f11; padding: 0.5rem 1rem; font-weight: bold; }
.state { font-weight: bold; } .missing { color: #8a1f11; } .source { color: #444; }
table { border-collapse: collapse; margin: 0.5rem 0; } .wide { overflow-x: auto; }
th, td { border: 1px solid #767676; padding: 0.25rem 0.5rem; text-align: left; vertical-align: top;
  overflow-wrap: anywhere; }
caption { text-align: left; color: #444; }
p { overflow-wrap: anywhere; margin: 0.2rem 0; }
"""


def web_page(draft: Draft) -> bytes:
    """The page, UTF-8."""
    html = Element("html", lang="en")
    head = SubElement(html, "head")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": POLICY})
    SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    _add(head, "title", f"{draft.title}: {HEADLINE}")
    SubElement(head, "style").text = _STYLE
    main = SubElement(SubElement(html, "body"), "main")
    _add(main, "h1", draft.title)
    _add(main, "p", f"{HEADLINE}. {draft.summary}", "draft")
    for each in draft.basis:
        _add(main, "p", f"{each}.", "source")
    for section in draft.sections:
        _add(main, f"h{section.level}", f"{section.number} {section.title}")
        for field in section.fields:
            _field(main, field)
    if draft.unused:
        _add(main, "h2", "Stated by the provider and not used")
        _add(main, "p", f"Records fill these fields: {', '.join(draft.unused)}.")
    text: bytes = tostring(html, encoding="utf-8", method="html")
    return b"<!doctype html>\n" + text + b"\n"


def _field(main: Element, field: Field) -> None:
    block = SubElement(main, "div", {"class": "field"})
    _add(block, "p", field.label, "state")
    said = SubElement(block, "p")
    _add(said, "span", f"{WORDS[field.state]}.", f"state {field.state}")
    said[-1].tail = f" {printable(field.source)}."
    for each in field.lines:
        _add(block, "p", each)
    if field.grid is not None:
        _grid(block, field.label, field.grid)


def _grid(block: Element, label: str, grid: Grid) -> None:
    # A region that scrolls has to be reachable by keyboard, and named.
    wide = SubElement(
        block,
        "div",
        {"class": "wide", "tabindex": "0", "role": "region", "aria-label": printable(label)},
    )
    table = SubElement(wide, "table")
    _add(table, "caption", f"{label}: {len(grid.rows):,} rows")
    top = SubElement(SubElement(table, "thead"), "tr")
    for column in grid.columns:
        _add(top, "th", column).set("scope", "col")
    body = SubElement(table, "tbody")
    for row in grid.rows:
        line = SubElement(body, "tr")
        first, *others = row
        _add(line, "th", first).set("scope", "row")
        for cell in others:
            _add(line, "td", cell)


def _add(parent: Element, tag: str, text: str, style: str | None = None) -> Element:
    made = SubElement(parent, tag, {"class": style} if style else {})
    made.text = printable(text)
    return made
