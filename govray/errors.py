"""The one error tree.

Every error a user can meet says *what* went wrong, *where*, and what to *do* about it, in one
paragraph. Errors cross process boundaries (Ray pickles them), so an instance is rebuilt from
exactly its constructor arguments. The words may come from a file, so the text of an error is always
`printable`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from govray.printable import paragraph


class GovrayError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: What went wrong, one sentence without a final full stop.
        where: The file, field, corpus, rank or step it concerns.
        do: What the reader can do about it.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, do: str | None = None) -> None:
        super().__init__(what, where, do)
        self.what = what
        self.where = where
        self.do = do

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return paragraph(f"{text}. {self.do}" if self.do else text)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args))


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The one of ``known`` that is spelt most like ``name``; None if none is near.

    ``cutoff`` in [0, 1] is how much alike they have to be (`difflib.get_close_matches`).
    """
    near = difflib.get_close_matches(name, [*known], n=1, cutoff=cutoff)
    return near[0] if near else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` with the nearest of ``known`` names, or nothing if none is near."""
    near = nearest(name, known)
    return f" (did you mean {near!r}?)" if near else ""


def _rebuild(kind: type[GovrayError], args: tuple[str, str | None, str | None]) -> GovrayError:
    what, where, do = args
    return kind(what, where=where, do=do)


class UsageError(GovrayError):
    """Input that the user can correct: a missing file, a typo in a config, a wrong option."""

    exit_code = 2


class Refused(GovrayError):
    """Governance refuses. Never retried: the same input would be refused again."""


class Malformed(Refused):
    """Bytes that are not what their format says: strictness, not repair."""


class Damaged(Malformed):
    """Stored bytes that are not those that were committed: cut, changed, or never complete."""


class Untrusted(Refused):
    """A signature, scope, threshold, expiry or version that the trust root does not allow."""


class VerificationFailed(Refused):
    """A numbered step of the verifier failed. ``what`` begins with ``step N (name)``."""


class CouldNotCheck(GovrayError):
    """Neither passed nor failed: something needed for the check is absent."""

    exit_code = 3


class RankFailed(GovrayError):
    """One rank failed and every rank stopped together. ``where`` names the rank."""


class InfrastructureFailed(RankFailed):
    """Processes, nodes, the network or storage failed, not the code: another try may go well."""

    exit_code = 69  # EX_UNAVAILABLE of sysexits.h


class Stopped(GovrayError):
    """A run stopped because it was asked to, after a commit. Run it again to resume."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: not done, try again
