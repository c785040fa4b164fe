"""The ``govray`` command.

`main` alone turns an exception into an exit code and a paragraph for a human. Verbs raise. They
exit by themselves only where a check ran and failed, with its findings on standard output.

Exit codes: 0 done, 1 a check failed, 2 usage, 3 could not check. A run that stopped as requested is
75 (EX_TEMPFAIL of sysexits.h), an interrupt 130. When the reader of our output went away it is 141.
A bug in govray is 70 (EX_SOFTWARE): it means neither "failed" nor "could not check".
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; a traceback too with ``--debug``."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Taken out here so that they work before and after the verb alike.
    debug = _take(words, "--debug")
    as_json = _take(words, "--json")

    # Names of files may be no Unicode, and a terminal no UTF-8.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        from govray.cli.app import run
        from govray.cli.output import filter_log, results

        filter_log()
        with results(as_json=as_json):
            code = run(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Python flushes standard output once more at exit; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt as error:
        if debug:
            from govray.cli.error_report import print_traceback

            print_traceback(error)
        print("\ngovray: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        from govray.cli.error_report import describe, print_traceback

        if debug:
            print_traceback(error)
        failure = describe(error)
        failure.print(as_json=as_json)
        return failure.exit_code


def _take(words: list[str], flag: str) -> bool:
    """Remove ``flag`` from ``words``, up to a ``--``, and say whether it was there."""
    end = words.index("--") if "--" in words else len(words)
    options = words[:end]
    words[:end] = [word for word in options if word != flag]
    return flag in options
