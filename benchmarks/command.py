"""What the benchmarks' commands share: count options, the exit code, one-line errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

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
