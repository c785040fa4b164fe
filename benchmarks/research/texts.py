"""Texts that an installation has: the standard library, and three kinds of records made of it.

* ``code``: the source of this Python's standard library, a record for each top-level definition.
* ``prose``: what installed packages say of themselves in English. A record is a paragraph of a
  docstring, without the code in it. A package takes part if its own metadata states a licence.
* ``manuals``: paragraphs of the system's manual pages, by the first word of a page's name.

All have the same form: some packages by name, whose texts are read once, and a pool of texts of
all the others. From the pool come the rows that are read again and again, and those never read.

No two texts of a pool begin alike. Otherwise copies of a row that is trained on would lie on the
other side.
"""

from __future__ import annotations

import ast
import gzip
import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from govray.data.installed_python import NOASSERTION, STANDARD_LIBRARY, python_source
from govray.errors import UsageError

STDLIB = Path(sysconfig.get_path("stdlib"))
"""This Python's standard library."""

_LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "turtledemo"}

PACKAGES = 24
"""Of prose: those with the most files."""

_FILES = 120
"""Read of each, the first by name."""

_BEGINNING = 24
"""Characters by which texts are told apart."""

_LEAST = 100
_WORDY = 0.97
_PARAGRAPHS = re.compile(r"\n\s*\n")

MANUALS = Path("/usr/share/man")
_GENERATED = 1000
"""Pages of one first word that are so many are written by a program, and alike."""
_FONT = re.compile(r"^\.(?:[BIR]{1,2}|SM|SB) ")
_ESCAPES = re.compile(r"\\(?:f\(..|f\[[^]]*\]|f.|&|\*?\(..|\*?\[[^]]*\]|[^-])")


@dataclass(frozen=True)
class Kind:
    """Texts of one kind.

    Attributes:
        pool: Texts of which some are read repeatedly and some never, sorted.
        packages: Package → texts of it, read once; no text of the pool is among them.
        licences: Package → SPDX expression, of all that gave texts.
    """

    pool: Sequence[str]
    packages: Mapping[str, Sequence[str]]
    licences: Mapping[str, str]


def library(root: Path = STDLIB) -> tuple[list[str], dict[str, list[str]]]:
    """Docstrings, and source of top-level definitions by package, of the standard library."""
    texts: set[str] = set()
    sources: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if _LEFT_OUT & set(place.parts):
            continue
        try:
            text = path.read_text("utf-8")
            tree = ast.parse(text)
        except (OSError, ValueError, SyntaxError):
            continue
        texts |= set(docstrings(tree))
        lines = text.splitlines(keepends=True)
        held = sources.setdefault(place.parts[0], [])
        held += ["".join(lines[node.lineno - 1 : node.end_lineno]) for node in tree.body]
    return sorted(texts), {name: sorted(set(each)) for name, each in sources.items()}


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Those of a module, its classes and its functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node)
            if text:
                yield text


def too_few(what: str) -> UsageError:
    """The error that this Python's library is too small, for instance without its sources."""
    return UsageError(
        f"{what} are too few",
        where=str(STDLIB),
        do="Run it with a Python that has its library's sources",
    )


def code(sources: Mapping[str, Sequence[str]], packages: int) -> Kind:
    """The standard library's source; the largest packages are the ones read once."""
    return _kind({name: list(texts) for name, texts in sources.items()}, {}, packages)


def prose(packages: int) -> Kind:
    """Paragraphs of docstrings of installed packages; the largest are the ones read once."""
    stated = [
        each
        for each in python_source()
        if each.license != NOASSERTION and each.corpus != STANDARD_LIBRARY
    ]
    largest = sorted(stated, key=lambda each: (-len(each.files), each.corpus))[:PACKAGES]
    texts = {
        each.corpus: [text for _, path in each.files[:_FILES] for text in _paragraphs(path)]
        for each in largest
    }
    return _kind(texts, {each.corpus: each.license for each in largest}, packages)


def manuals(packages: int, root: Path = MANUALS) -> Kind:
    """Paragraphs of manual pages in English; names of most pages are the ones read once.

    Raises:
        UsageError: The system has no manual pages.
    """
    pages: dict[str, list[Path]] = {}
    for page in sorted(root.glob("man[1-8]/*.gz")):
        if not page.is_symlink():
            pages.setdefault(re.split(r"[-.:_]", page.name)[0], []).append(page)
    found = {
        name: [text for page in own for text in _roff(page)]
        for name, own in pages.items()
        if len(own) <= _GENERATED
    }
    if not found:
        raise UsageError("no manual pages", where=str(root), do="Install the system's manuals")
    return _kind(found, dict.fromkeys(sorted(found), NOASSERTION), packages)


def _roff(page: Path) -> Iterator[str]:
    """Paragraphs of a page: lines of text between its requests, without escapes."""
    text = gzip.decompress(page.read_bytes()).decode("utf-8", "replace")
    lines = (_FONT.sub("", line) for line in text.splitlines())
    plain = ("" if line[:1] in {".", "'"} else _ESCAPES.sub("", line) for line in lines)
    return _sentences("\n".join(plain).replace("\\-", "-"))


def _kind(texts: Mapping[str, Sequence[str]], licences: Mapping[str, str], packages: int) -> Kind:
    seen: set[str] = set()
    distinct: dict[str, list[str]] = {}
    for name in sorted(texts):
        distinct[name] = []
        for text in sorted(set(texts[name])):
            if text[:_BEGINNING] not in seen:
                seen.add(text[:_BEGINNING])
                distinct[name].append(text)
    once = sorted(distinct, key=lambda name: (-len(distinct[name]), name))[:packages]
    return Kind(
        pool=sorted(text for name in distinct if name not in once for text in distinct[name]),
        packages={name: distinct[name] for name in sorted(once)},
        licences=licences or dict.fromkeys(sorted(distinct), "PSF-2.0"),
    )


def _paragraphs(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, ValueError, SyntaxError):
        return
    for text in docstrings(tree):
        yield from _sentences(text)


def _sentences(text: str) -> Iterator[str]:
    for paragraph in _PARAGRAPHS.split(text):
        words = " ".join(paragraph.split())
        if len(words) >= _LEAST and _wordy(words):
            yield words


def _wordy(text: str) -> bool:
    """Whether it reads like sentences: next to no sign but letters and punctuation."""
    plain = sum(each.isalpha() or each in " ,.;:'()-" for each in text)
    return ">>>" not in text and plain >= _WORDY * len(text)


KINDS: Mapping[str, Callable[[int], Kind]] = MappingProxyType(
    {"code": lambda packages: code(library()[1], packages), "prose": prose, "manuals": manuals}
)
"""By name: number of packages → texts."""
