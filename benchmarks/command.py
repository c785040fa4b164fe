"""How a benchmark ends: its exit code, and errors in one paragraph."""

from __future__ import annotations

import sys
from collections.abc import Callable

from govray.errors import GovrayError

_INTERRUPTED = 130


def run(main: Callable[[], None]) -> int:
    """Run a benchmark from the command line; the process's exit code."""
    try:
        main()
    except GovrayError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0
