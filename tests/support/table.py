"""A table of cases as one test, where a case costs less than a test of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def each_row(
    names: str | tuple[str, ...], rows: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for each row. What fails names its row, and ends the test."""
    given = (names,) if isinstance(names, str) else names

    def over_rows(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for row in rows:
                values = (row,) if isinstance(names, str) else row
                try:
                    test(**fixtures, **dict(zip(given, values, strict=True)))
                except BaseException as error:
                    error.add_note(f"in the row {row!r}")
                    raise

        asked = inspect.signature(test).parameters
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [each for name, each in asked.items() if name not in given]
        )
        return run

    return over_rows
