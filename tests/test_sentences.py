"""Sentences of docstrings, comments and docs have at most 25 words, and plain subjects."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.prose import prose
from tests.support.tree import ROOT

MOST = 25
FOLDERS = ["govray", "benchmarks", "docs", "jobs", "policies", "searchers", "serve"]
ATTESTED = "It does not establish that no other data was used, that licence or rights statements"
"""How the one longer sentence begins: what every attestation carries, to the letter."""

SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
BULLET = re.compile(r"([-*]|[1-9]\d*\.) +")


def paragraphs(text: str) -> Iterator[str]:
    """Running text, one paragraph, bullet or argument at a time; tables and code are left out."""
    found: list[str] = []
    section = False
    for line in [*re.sub(r"```.*?```", "", inspect.cleandoc(text), flags=re.S).splitlines(), ""]:
        indent, content = len(line) - len(line.lstrip()), line.strip()
        section = bool(SECTION.match(content)) or (section and (indent > 0 or not content))
        code = indent >= 4 and not section and not found
        apart = (
            not content
            or re.search(r"\S  +\S", content)
            or content.startswith(("|", "#"))
            or SECTION.match(content)
            or code
        )
        bullet = BULLET.match(content)
        if apart or bullet or (section and indent == 4):
            yield " ".join(found)
            found = []
        if not apart:
            found.append(content[bullet.end() :] if bullet else content)


def sentences(paragraph: str) -> list[str]:
    """Cut at full stops before a capital; what stands in backticks or behind a link is a word."""
    plain = re.sub(r"``.+?``|`.+?`", "Code", paragraph)
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", plain)
    plain = re.sub(r"\b(e\.g|i\.e|al|ch|vs)\.", r"\1", plain)
    return re.split(r"(?<=[.!?])[\"”)*_]*\s+(?=[^a-z])", plain)


def too_long(text: str) -> list[str]:
    """The sentences with more than 25 words."""
    found = [each for part in paragraphs(text) for each in sentences(part)]
    return [each for each in found if len(re.findall(r"\S*\w\S*", each)) > MOST]


def texts(folder: str) -> Iterator[tuple[str, str]]:
    """Place and text of everything that a folder's files say in prose."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for line, text in prose(path.read_text()):
            yield f"{path.relative_to(ROOT)}:{line}", text
    for path in sorted((ROOT / folder).rglob("*.md")):
        yield str(path.relative_to(ROOT)), path.read_text()


@pytest.mark.parametrize("folder", FOLDERS)
def test_sentences_are_short(folder: str) -> None:
    found = [
        f"{place}: {each}"
        for place, text in texts(folder)
        for each in too_long(text)
        if not each.startswith(ATTESTED)
    ]
    assert not found, "\n".join(found)


CLUMSY = (
    r"(is|are|is in|are in) none\b",
    r"(what|who) is to \w+\?$",
    r"(is|are) another(?=[.,;:)]|\'s\b| (one|than|and|or)\b|$)",
    r"do(es)? without(?! \w)",
    r", which (its|the|their) (\w+ ){1,3}\w+s\.?$",
)
"""What nobody says: a predicate, or an end, that makes a reader look back."""


WHOSE = re.compile(rf"Whoever\b|Who submits\b|.*\b{CLUMSY[0]}")
"""What no docstring or comment says; "Who drives a run" may be a title."""


def unplain(text: str, subjects: str) -> list[str]:
    """The sentences that begin with one of ``subjects``, or have what is `CLUMSY`."""
    wrong = re.compile(
        rf"({subjects})\b(?!.*\?$)|That .* (at|by|for|from|in|of|on|to|with)\.?$"
        rf"|.*\b({'|'.join(CLUMSY)})"
    )
    return [s for part in paragraphs(text) for s in sentences(part) if wrong.match(s)]


def literals(path: Path) -> Iterator[str]:
    """A module's strings, but for those that stand alone."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        for child in () if isinstance(node, ast.Expr) else ast.iter_child_nodes(node):
            if isinstance(child, ast.Constant) and isinstance(child.value, str):
                yield child.value


def test_docs_help_and_messages_are_plain() -> None:
    """What users meet: pages, strings, and the docstrings that `--help` and the API repeat.

    In a message "Who asks" may be a label. No docstring or comment of any room begins a sentence
    with "Whoever", or says "is none".
    """
    pages = [
        *ROOT.glob("*.md"),
        *(page for each in FOLDERS for page in (ROOT / each).rglob("*.md")),
    ]
    found = {str(page): unplain(page.read_text(), "Who|Whoever") for page in pages}
    modules = [*(ROOT / "govray").rglob("*.py")]
    found |= {str(p): [w for s in literals(p) for w in unplain(s, "Whoever")] for p in modules}
    for folder in ("govray/cli", "govray/platform/service/routes"):
        for place, text in texts(folder):
            found[place] = unplain(text, "Who|Whoever")
    for place, text in texts("govray"):
        whose = [s for part in paragraphs(text) for s in sentences(part) if WHOSE.match(s)]
        found[place] = found.get(place, []) + whose
    assert {place: wrong for place, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    "old",
    [
        "Whoever fears for certain corpora names their rules.",
        "Who submits writes an entry in state QUEUED.",
        "The first of the names if it is none of them.",
        "Its name is none: an experiment has one folder.",
        "what is to run?",
        "A text of which there is none.",
        "That samples are drawn at.",
        "Put a user into a group, which its first member makes.",
        "what a submitted job runs in; a run by hand does without",
        "a witness cosigns with Ed25519, and this key is another",
        "the pool of nodes of a submitted run; a run by hand is in none",
    ],
)
def test_what_nobody_says_is_found(old: str) -> None:
    assert unplain(f"Who reads? It has none of these.\n\n{old}", "Who|Whoever") == [old]


def test_a_long_sentence_is_found_wherever_it_stands() -> None:
    long = "Here " + "is a word and " * 6 + "an end."
    short = "Here is `a word` and an end."
    assert too_long(f"{short} {long}") == [long]
    assert too_long(f"What.\n\nArgs:\n    one: {short}\n    two: {long}") == [f"two: {long}"]
    assert too_long(f"* {short}\n* {long}\n\n    {long}\n\n```\n{long}\n```") == [long]
