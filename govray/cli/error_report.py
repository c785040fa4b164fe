"""From an exception to one paragraph: what, where, what to do.

The paragraph goes to standard error. With ``--json`` it also goes to standard output as one
document, so that a script always reads JSON. Both are `printable`, since the words of an error may
come from a file.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from dataclasses import dataclass

import typer

from govray.errors import GovrayError
from govray.extras import EXTRAS, install
from govray.printable import json_text, lines, paragraph

USAGE = 2
COULD_NOT_CHECK = 3
BUG = 70


@dataclass(frozen=True)
class ErrorReport:
    kind: str
    what: str
    exit_code: int
    where: str | None = None
    do: str | None = None

    def print(self, *, as_json: bool) -> None:
        place = [paragraph(self.where)] if self.where else []
        text = " ".join(_sentence(paragraph(part)) for part in (self.what, self.do) if part)
        print(": ".join(["govray", *place, text]), file=sys.stderr)
        if as_json:
            fields = {
                "kind": self.kind,
                "what": self.what,
                "where": self.where,
                "do": self.do,
                "exitCode": self.exit_code,
            }
            print(json_text({"error": {k: v for k, v in fields.items() if v is not None}}))


def print_traceback(error: BaseException) -> None:
    """Write the traceback to standard error; an error of the command line has none to show."""
    if isinstance(error, typer.TyperException):
        return
    print(lines("".join(traceback.format_exception(error))), file=sys.stderr)


def describe(error: Exception) -> ErrorReport:
    """The report of ``error``. An exception that is not foreseen is a bug in govray."""
    kind = type(error).__name__
    if isinstance(error, GovrayError):
        return ErrorReport(kind, error.what, error.exit_code, error.where, error.do)
    if isinstance(error, typer.TyperException):
        return ErrorReport("UsageError", _without_long_words(error), USAGE, do=_help_for(error))
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        extra = EXTRAS.get(error.name.partition(".")[0])
        if extra is not None:
            return ErrorReport(
                "CouldNotCheck",
                f"this needs {error.name}, which is not installed",
                COULD_NOT_CHECK,
                do=f"Run {install(extra)}.",
            )
    if isinstance(error, OSError) and error.errno in _OS_ADVICE:
        where = str(error.filename) if error.filename is not None else None
        what = (error.strerror or str(error)).lower()
        return ErrorReport("UsageError", what, USAGE, where, _OS_ADVICE[error.errno])
    return ErrorReport(
        "Bug",
        f"unexpected {kind}: {error}",
        BUG,
        do="This is a bug in govray; run again with --debug and report the traceback.",
    )


# What the operating system refuses and the reader can correct.
_OS_ADVICE = {
    errno.ENOENT: "Check the path.",
    errno.ENOTDIR: "Check the path.",
    errno.EISDIR: "Name a file, not a folder.",
    errno.EACCES: "Check the permissions.",
    errno.EPERM: "Check the permissions.",
    errno.EROFS: "Name a place that can be written.",
    errno.ENOSPC: "Free some space; nothing was left half written.",
    errno.ENAMETOOLONG: "Use a shorter name.",
    errno.ELOOP: "Check the links along the path.",
    errno.ENXIO: "Name a regular file.",
    errno.EFBIG: "Look at the file: what belongs there is smaller.",
}


def _without_long_words(error: typer.TyperException) -> str:
    """What is wrong with the command line, without words that could be part of a key."""
    said: str = error.format_message().replace(" Value error, ", " ")
    words = re.split(r"[\s'\"()]+", said)
    if any(len(word) > _LONG and not os.path.lexists(word) for word in words):
        return "the command line has an unexpected long word, which is not repeated here"
    return said


# Characters; a line of a private key has more. A shell splits a key in a variable into its lines.
_LONG = 40


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."


def _help_for(error: typer.TyperException) -> str | None:
    context = getattr(error, "ctx", None)
    return f"See {context.command_path} --help." if context is not None else None
