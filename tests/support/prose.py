"""What a Python file says to its readers: its docstrings and its comments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator


def without_long_strings(source: str) -> str:
    """The source with as many lines, and nothing in place of strings in triple quotes."""
    return re.sub(r'""".*?"""', lambda found: "\n" * found[0].count("\n"), source, flags=re.S)


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Each docstring, also an attribute's, and each block of comment lines, with its first line.

    A comment behind code is left out: it has no room for a long sentence.
    """
    yield from _docstrings(ast.parse(source))
    block: list[str] = []
    for number, line in enumerate([*without_long_strings(source).split("\n"), ""], 1):
        if line.lstrip().startswith("#"):
            block.append(line.lstrip().lstrip("#:").removeprefix(" "))
        elif block:
            yield number - len(block), "\n".join(block)
            block = []


def _docstrings(node: ast.AST) -> Iterator[tuple[int, str]]:
    for statement in getattr(node, "body", ()):
        match statement:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield statement.lineno, text
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _docstrings(statement)
