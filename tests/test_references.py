"""What docstrings, comments and docs name in backticks is there: files, and names in modules."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.prose import prose, without_long_strings
from tests.support.tree import ROOT

FOLDERS = ["govray", "benchmarks", "jobs", "searchers", "serve"]
CODE = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PAGES = [p for each in ("docs/**/*.md", "benchmarks/*.md", "*.md") for p in ROOT.glob(each)]
OTHERS = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("docs/*.py"), *ROOT.glob("*.py")]
FILES = [str(path.relative_to(ROOT)) for path in [*CODE, *OTHERS]]
LIBRARIES = {
    *sys.stdlib_module_names,
    "numpy",
    "pyarrow",
    "ray",
    "safetensors",
    "sqlmodel",
    "torch",
}
DOTTED = re.compile(r"[a-z]\w*(\.[a-zA-Z_]\w+)+")
STORED = (".json", ".jsonl", ".yaml", ".parquet", ".safetensors", ".checkpoint", ".lock", ".html")


@cache
def names(path: Path) -> frozenset[str]:
    """What a file defines, imports or reads: every word of its code."""
    code = re.sub(r"#.*", "", without_long_strings(path.read_text()))
    return frozenset(re.findall(r"[A-Za-z_]\w*", code))


@cache
def modules() -> dict[str, set[str]]:
    """By the name of a module or a folder, the names inside all that bear it."""
    found = defaultdict[str, set[str]](set)
    for path in CODE:
        module = path.parent if path.name == "__init__.py" else path
        found[module.stem] |= names(path)
        found[module.parent.name].add(module.stem)
    return found


def stale(text: str, reader: Path) -> Iterator[str]:
    """The references that lead nowhere for who reads this text in that file."""
    layer = "/".join(reader.relative_to(ROOT).parts[:2])
    for reference in re.findall(r"`([\w./]+)(?:\(\))?`", text):
        if re.search(r"\w\.py$", reference):
            inside = layer if layer.startswith("govray/") and "/" not in reference else ""
            here = [each for each in FILES if each.startswith(inside)]
            if not any(f"/{each}".endswith(f"/{reference}") for each in here):
                yield reference
        elif DOTTED.fullmatch(reference) and not reference.endswith(STORED):
            head, name = reference.split(".")[:2]
            known = reader.suffix == ".md" or head in LIBRARIES or head in names(reader)
            if not known and name not in modules()[head]:
                yield reference


def test_what_is_named_is_there() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {each}"
        for path in CODE
        for line, text in prose(path.read_text())
        for each in stale(text, path)
    ]
    found += [
        f"{path.relative_to(ROOT)} {each}"
        for path in PAGES
        for each in stale(re.sub(r"```.*?```", "", path.read_text(), flags=re.S), path)
    ]
    assert not found, "\n".join(found)


def test_a_name_that_is_gone_is_found() -> None:
    reader = ROOT / "govray" / "train" / "driver" / "submit.py"
    there = "`failures.py`, `governance/verify/steps.py`, `failures.classify`, `run.json`"
    gone = ["departed.py", "verifier.py", "failures.departed", "departed.classify"]
    assert list(stale(there, reader)) == []
    assert list(stale(" ".join(f"`{each}`" for each in gone), reader)) == gone
