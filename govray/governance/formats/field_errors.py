"""What pydantic refuses, told in words: which field, and what is wrong with it.

Values are not repeated: they may be secrets. `govray.governance.formats.document` tells more of a
signed document's fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

MOST_ERRORS = 20


class _Errors(Protocol):
    """pydantic's error, or FastAPI's of a request."""

    def errors(self) -> Any: ...


@dataclass(frozen=True)
class FieldError:
    """One field that is refused; without a path it is the whole that is."""

    path: tuple[str | int, ...]
    what: str

    @property
    def field(self) -> str:
        return ".".join(map(str, self.path))

    def __str__(self) -> str:
        return f"{self.field}: {self.what}" if self.path else self.what


def field_errors(error: _Errors) -> list[FieldError]:
    """The first `MOST_ERRORS` fields that are refused."""
    return [
        # pydantic prefixes the text of our own validators.
        FieldError(tuple(each["loc"]), str(each["msg"]).removeprefix("Value error, "))
        for each in error.errors()[:MOST_ERRORS]
    ]
