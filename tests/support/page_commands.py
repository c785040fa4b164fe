"""What a page gives to a shell, what it says that this prints, and whether it did.

A fence of a shell, or of no language, is commands. A fence ``text`` is what the commands before it
in the same section print, in part: each line of it comes, in this order. ``…`` stands for any
text, and spaces for as many others. Another fence whose first line is ``# NAME``, with a suffix, is
the file of that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tests.support.tree import ROOT

SHELLS = ("", "bash", "sh", "console")
MARK = "--- block"


@dataclass(frozen=True)
class Block:
    """One fence of commands."""

    heading: str
    """Of the section that it stands in."""
    commands: str
    """Without prompts."""
    printed: str
    """What the page says that they print; empty where it says nothing."""


def blocks(page: str) -> list[Block]:
    """All fences of commands of a page, in order."""
    found: list[Block] = []
    for heading, language, text in _fences(page):
        if language in SHELLS:
            found.append(Block(heading, re.sub(r"^\$ ", "", text, flags=re.M), ""))
        elif language == "text" and found and found[-1].heading == heading:
            said = found.pop()
            found.append(Block(heading, said.commands, said.printed + text))
    return found


def files(page: str) -> dict[str, str]:
    """The files that the page shows whole, by their names."""
    texts = [text for _, language, text in _fences(page) if language not in (*SHELLS, "text")]
    named = [(re.match(r"# ([\w/-]+\.\w+)\b", text), text) for text in texts]
    return {match[1]: text for match, text in named if match}


def part(page: str, heading: str) -> str:
    """The text below the heading that begins so, up to the next one of its level or above."""
    found: list[str] = []
    level, fenced = 0, False
    for line in (ROOT / page).read_text().splitlines(keepends=True):
        fenced ^= line.startswith("```")
        marks = 0 if fenced else len(line) - len(line.lstrip("#"))
        if level and 0 < marks <= level:
            break
        if level:
            found.append(line)
        elif marks and line[marks:].strip().startswith(heading):
            level = marks
    assert found, heading
    return "".join(found)


def section(page: str, heading: str) -> str:
    """The commands of the section whose heading begins so."""
    found = [each.commands for each in blocks(page) if each.heading.startswith(heading)]
    assert found, heading
    return "".join(found)


def lines(commands: str) -> list[str]:
    """Command lines; what continues one, or is its here-document, belongs to it."""
    found: list[str] = []
    ends = None
    for line in commands.splitlines(keepends=True):
        if found and (ends or found[-1].endswith("\\\n")):
            found[-1] += line
        else:
            found.append(line)
        if ends is None and (begins := re.search(r"<<'?(\w+)'?", line)):
            ends = begins[1]
        elif line.strip() == ends:
            ends = None
    return found


def missing(printed: str, told: str) -> list[str]:
    """The lines of ``printed`` that do not come in ``told`` behind those before them."""
    absent, at = [], 0
    for line in filter(str.strip, printed.splitlines()):
        words = [re.escape(word).replace("…", ".*?") for word in line.split()]
        come = re.compile(r"^\s*" + r"\s+".join(words) + r"\s*$", re.M).search(told, at)
        if come:
            at = come.end()
        else:
            absent.append(line)
    return absent


def script(
    page: str, left: Sequence[str] = (), ends: Mapping[str, int] = MappingProxyType({})
) -> str:
    """All commands of a page for one shell.

    Before each block it prints a mark, by which `faults` finds what the block printed.

    Args:
        left: Beginnings of commands to leave out.
        ends: Beginning of a command → the exit code that the page says, if it isn't 0.
    """
    parts = []
    for number, block in enumerate(blocks(page)):
        kept = [line for line in lines(block.commands) if not line.startswith(tuple(left))]
        for beginning, code in ends.items():
            ended = f" || test $? = {code}\n"
            kept = [e.rstrip() + ended if e.startswith(beginning) else e for e in kept]
        if "".join(kept).strip():
            parts.append(f"echo {MARK} {number}\n{''.join(kept)}")
    return "\n".join(parts)


def faults(page: str, told: str) -> list[str]:
    """What of a page's stated output is not in what its `script` told."""
    found = blocks(page)
    parts = re.split(rf"^{MARK} (\d+)\n", told, flags=re.M)[1:]
    return [
        f"{page}, {found[int(number)].heading!r}: no {line!r} in:\n{part}"
        for number, part in zip(parts[::2], parts[1::2], strict=True)
        for line in missing(found[int(number)].printed, part)
    ]


def _fences(page: str) -> Iterator[tuple[str, str, str]]:
    """Heading, language and text of each fence."""
    heading = ""
    for each in re.finditer(
        r"^#+ (?P<heading>[^\n]*)$|^```(?P<language>\w*)\n(?P<text>.*?)^```$",
        (ROOT / page).read_text(),
        re.M | re.S,
    ):
        if each["heading"] is not None:
            heading = each["heading"]
        else:
            yield heading, each["language"], each["text"]
