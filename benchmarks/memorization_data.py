"""The data of the memorization benchmark: this Python's own library, and planted canaries.

* ``docstrings``: docstrings of the standard library, read repeatedly;
* clean corpora: its source by package, each row read at most once;
* canaries: ``account of ``, three letters and eight digits, at the start of rows of other
  docstrings, once for each repeat. Twice as many are never planted;
* accounts of the same form that are read once and not ranked. From them the model learns that an
  unknown owner's digits are open. Otherwise every account that it reads is repeated. It would then
  give an unknown owner another's digits, wrong and with a low entropy.

No two accounts have an owner in common.

Each corpus is split at random, by record, into records that are trained on and a reserve. Rows are
cut from the start of a record, without overlap.

A byte is a token.
"""

from __future__ import annotations

import ast
import random
import string
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from govray.engine.batch import IGNORED
from govray.errors import UsageError

SEPARATOR = 256
VOCABULARY = 257
PREFIX = "account of "
OWNER = 4
"""Characters before a canary's digits: three letters and a colon."""
DIGITS = 8
SPACE = 10**DIGITS

STDLIB = Path(sysconfig.get_path("stdlib"))
"""This Python's standard library."""

_LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "turtledemo"}

Row = list[int]


@dataclass(frozen=True)
class Recipe:
    """Sizes of model, data and training; the defaults are what the report is about.

    Attributes:
        steps: Of training.
        rows: Of a step.
        docstring_rows: Rows of docstrings in a step.
        docstrings: Records trained on; the reserve has as many.
        reads: How often the rows of such a record are read, in turn; empty: all equally often.
        rows_each: Rows of such a record that are read.
        others: Records never trained on that the baselines rank, at most.
        references: Models trained without any of the ranked rows.
        reference_steps: Of training each.
        clean: Number of clean corpora.
        repeats: How often a canary is planted.
        canaries: Canaries for each number of repeats.
        once: Accounts that are read once and not ranked.
        candidates: Other digit strings from which a canary's rank is estimated.
        blocks, width, heads, context: Of the model.
        learning_rate: At its highest.
        every: Steps between two entropy profiles.
        probe_rows: Rows of each side of a probe.
    """

    steps: int = 3200
    rows: int = 4
    docstring_rows: int = 2
    docstrings: int = 128
    reads: tuple[int, ...] = ()
    rows_each: int = 2
    others: int = 1000
    references: int = 1
    reference_steps: int = 1200
    clean: int = 16
    repeats: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    canaries: int = 3
    once: int = 384
    candidates: int = 256
    blocks: int = 4
    width: int = 96
    heads: int = 4
    context: int = 32
    learning_rate: float = 1.5e-3
    every: int = 500
    probe_rows: int = 16


@dataclass(frozen=True)
class Corpus:
    """Rows by record, each T + 1 tokens.

    Attributes:
        trained: Records that are trained on.
        reserve: Records that are not.
    """

    trained: tuple[tuple[Row, ...], ...]
    reserve: tuple[tuple[Row, ...], ...]


@dataclass(frozen=True)
class Data:
    """One seed's data.

    Attributes:
        docstrings: Read again and again.
        others: Records like them, of which nothing is read.
        apart: The rest of such records, which only reference models read.
        clean: By package, read once at most.
        planted: Canary → repeats.
        held_out: Canaries that are never planted.
        canary_rows: One row for each planting and each account read once, in random order.
    """

    docstrings: Corpus
    others: tuple[tuple[Row, ...], ...]
    apart: tuple[tuple[Row, ...], ...]
    clean: Mapping[str, Corpus]
    planted: Mapping[str, int]
    held_out: tuple[str, ...]
    canary_rows: tuple[Row, ...]


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


def build(
    recipe: Recipe, seed: int, docstrings: Sequence[str], sources: Mapping[str, Sequence[str]]
) -> Data:
    """One seed's data.

    Raises:
        UsageError: This Python's library is too small, for instance without its sources.
    """
    draw = random.Random(seed)  # noqa: S311 — an experiment's randomness, repeatable
    context = recipe.context
    records = shuffled(docstrings, context, draw)
    members, reserve, rest = (
        records[: recipe.docstrings],
        records[recipe.docstrings : 2 * recipe.docstrings],
        records[2 * recipe.docstrings :],
    )
    clean = {}
    for name, texts in sources.items():
        found = shuffled(texts, context, draw)
        kept = max(recipe.probe_rows, len(found) // 4)
        if len(found) >= 2 * recipe.probe_rows:
            clean[name] = Corpus(tuple(found[kept:]), tuple(found[:kept]))
    largest = sorted(clean, key=lambda name: (-len(clean[name].trained), name))[: recipe.clean]
    if len(rest) < recipe.docstrings or len(largest) < recipe.clean:
        raise too_few(f"{len(records)} docstrings and {len(clean)} packages")
    count = len(recipe.repeats) * recipe.canaries
    accounts = _accounts(draw, 3 * count + recipe.once)
    planted = {
        text: recipe.repeats[n // recipe.canaries] for n, text in enumerate(accounts[:count])
    }
    plantings = [text for text, repeats in planted.items() for _ in range(repeats)]
    plantings += accounts[3 * count :]
    draw.shuffle(plantings)
    fillers = [draw.choice(rest) for _ in plantings]
    used = set(map(id, fillers))
    unread = [record for record in rest if id(record) not in used]
    others = unread[: min(recipe.others, len(unread) // 2)]
    ranked = set(map(id, others))
    return Data(
        docstrings=Corpus(tuple(members), tuple(reserve)),
        others=tuple(others),
        apart=tuple(record for record in rest if id(record) not in ranked),
        clean={name: clean[name] for name in largest},
        planted=planted,
        held_out=tuple(accounts[count : 3 * count]),
        canary_rows=tuple(
            planted_row(text, filler[0]) for text, filler in zip(plantings, fillers, strict=True)
        ),
    )


def shuffled(texts: Iterable[str], context: int, draw: random.Random) -> list[tuple[Row, ...]]:
    """Texts in random order, each in whole rows of T + 1 tokens from its beginning."""
    size, records = context + 1, []
    for text in texts:
        tokens = [SEPARATOR, *text.encode(), SEPARATOR]
        rows = tuple(tokens[i : i + size] for i in range(0, len(tokens) - context, size))
        records += [rows] if rows else []
    draw.shuffle(records)
    return records


def too_few(what: str) -> UsageError:
    """The error that this Python's library is too small, for instance without its sources."""
    return UsageError(
        f"{what} are too few",
        where=str(STDLIB),
        do="Run it with a Python that has its library's sources",
    )


def designated(corpus: str, number: int, record: Sequence[Row]) -> Row:
    """The row that a record is measured by: any, with equal chances."""
    return record[random.Random(f"{corpus} {number}").randrange(len(record))]  # noqa: S311


def canary_tokens(canary: str) -> Row:
    """A canary, owner and digits, as in a row."""
    return [SEPARATOR, *(PREFIX + canary).encode(), SEPARATOR]


def planted_row(canary: str, filler: Row) -> Row:
    """A row that begins with a canary and continues like another."""
    tokens = canary_tokens(canary)
    return [*tokens, *filler[len(tokens) :]]


def canary_rows(canaries: Sequence[str]) -> dict[str, Tensor]:
    """Rows with one canary each; loss targets are its digits alone."""
    tokens = torch.tensor([canary_tokens(each) for each in canaries])
    targets = tokens[:, 1:].clone()
    first = len(PREFIX) + OWNER
    targets[:, :first] = IGNORED
    targets[:, first + DIGITS :] = IGNORED
    return {"tokens": tokens[:, :-1].contiguous(), "targets": targets}


def batch(rows: Sequence[Row]) -> dict[str, Tensor]:
    """Rows as the model's input."""
    tokens = torch.tensor(rows)
    return {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}


def candidates(canary: str, count: int, seed: int) -> list[str]:
    """The canary's owner with other digits, the same ones for each canary."""
    draw = random.Random(-1 - seed)  # noqa: S311
    return [canary[:OWNER] + _digits(draw) for _ in range(count)]


def _accounts(draw: random.Random, count: int) -> list[str]:
    """Owners and digits; all owners differ."""
    found: dict[str, str] = {}
    while len(found) < count:
        owner = "".join(draw.choices(string.ascii_lowercase, k=OWNER - 1)) + ":"
        found.setdefault(owner, owner + _digits(draw))
    return list(found.values())


def _digits(draw: random.Random) -> str:
    return f"{draw.randrange(SPACE):0{DIGITS}d}"
