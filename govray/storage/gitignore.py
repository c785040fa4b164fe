"""Which files a folder's ``.gitignore`` leaves out, read as git reads it at the top of a folder.

The last pattern that fits decides, and ``!`` takes a file in again. Nothing below a folder that is
left out is taken in again. Files of inner folders are not read, nor is git's own configuration.

Source: gitignore(5), section PATTERN FORMAT.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_LARGEST = 1 << 16  # bytes of a file
_MOST = 1 << 10  # patterns, each of which every name is compared with


@dataclass(frozen=True)
class _Pattern:
    fits: re.Pattern[str]
    folders_only: bool
    takes_in: bool


@dataclass(frozen=True)
class Ignored:
    """Called with a name below the folder, whose upper folders are not left out."""

    patterns: tuple[_Pattern, ...]

    @classmethod
    def read(cls, files: Iterable[Path]) -> Ignored:
        """The patterns of the files that are there, one after another."""
        lines: list[str] = []
        for file in files:
            if file.is_file():
                with file.open("rb") as stream:
                    lines += stream.read(_LARGEST).decode("utf-8", "replace").splitlines()
        return cls.of(lines)

    @classmethod
    def of(cls, lines: Iterable[str]) -> Ignored:
        """The patterns of lines."""
        found = (_pattern(line) for line in lines)
        return cls(tuple(each for each in found if each is not None)[:_MOST])

    def __call__(self, name: str, is_folder: bool) -> bool:
        """Whether a file or folder is left out.
        ``name``: below the folder that the patterns are of, with slashes."""
        left_out = False
        for each in self.patterns:
            if (is_folder or not each.folders_only) and each.fits.fullmatch(name):
                left_out = not each.takes_in
        return left_out


def _pattern(line: str) -> _Pattern | None:
    text = line.rstrip()
    if not text or text.startswith("#"):
        return None
    takes_in = text.startswith("!")
    text = text.removeprefix("!")
    if text.startswith(("\\#", "\\!")):
        text = text[1:]
    folders_only = text.endswith("/")
    text = text.rstrip("/")
    if not text:
        return None
    anchored = "/" in text
    expression = _expression(text.removeprefix("/"))
    try:
        fits = re.compile(expression if anchored else f"(?:.*/)?{expression}", re.DOTALL)
    except re.error:  # brackets that hold no range: git fits nothing either
        return None
    return _Pattern(fits, folders_only, takes_in)


def _expression(text: str) -> str:
    """A pattern as a regular expression for a whole name."""
    found, at = "", 0
    while at < len(text):
        if text.startswith("**/", at) and (at == 0 or text[at - 1] == "/"):
            found, at = f"{found}(?:.*/)?", at + 3
        elif text[at:] == "**" and text[:at].endswith("/"):
            found, at = f"{found}.+", at + 2
        elif text[at] == "*":
            at = len(text) - len(text[at:].lstrip("*"))
            found += "[^/]*"
        elif text[at] == "?":
            found, at = f"{found}[^/]", at + 1
        elif text[at] == "[" and (stop := text.find("]", at + 2)) > 0:
            inner = text[at + 1 : stop].replace("\\", "\\\\").replace("[", "\\[")
            inner = f"^{inner[1:]}" if inner[:1] in ("!", "^") else inner
            found, at = f"{found}(?!/)[{inner}]", stop + 1
        else:
            at += text[at] == "\\" and at + 1 < len(text)
            found, at = found + re.escape(text[at]), at + 1
    return found
