"""What the benchmarks' commands share: kinds of options, the exit code, one-line errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping

from govray.errors import GovrayError

_INTERRUPTED = 130


def run(main: Callable[[], None]) -> int:
    """Run a benchmark from the command line, and return the process's exit code."""
    try:
        main()
    except GovrayError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def positive(text: str) -> int:
    """The type of an option that is a count of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 1")
    return int(text)


def names(known: Mapping[str, object]) -> Callable[[str], list[str]]:
    """The type of an option of comma-separated names, which come in the order of those known."""

    def parse(text: str) -> list[str]:
        given = text.split(",")
        for name in given:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return [name for name in known if name in given]

    return parse
