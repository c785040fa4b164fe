"""What one application answers rights holders' cases with: the key, the sources, the limits.

Cases are off unless the settings have them. Then every address of theirs answers as if there were
nothing, whoever asks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Annotated

import pydantic
from fastapi import Depends, Request
from starlette.types import Scope

from govray.errors import UsageError
from govray.governance.formats.keys import Signer, in_file
from govray.governance.signers.key_reference import open_signer
from govray.platform.service.acting.case_search import CaseSources
from govray.platform.service.http.limits import Buckets, RequestBound, address_key
from govray.platform.service.http.problems import Problem
from govray.platform.service.http.settings import CaseSettings, Settings
from govray.platform.service.http.stated_file import read_stated
from govray.platform.service.http.statuses import refuses
from govray.platform.service.identity.access import Caller
from govray.platform.service.visible.near_records import NearSearch
from govray.storage.place import Place, place

SEARCH_SECONDS = 600.0
"""Until a search has ended. The first one in a corpus reads all of it."""

_DAY = 86_400
_SEARCH = re.compile(r"(/v1/cases/[^/]+:search|/cases/[^/]+/search)")


@dataclass(frozen=True)
class CaseDesk:
    """See the module. Made by `of`."""

    settings: CaseSettings
    signer: Signer
    sources: CaseSources
    requests: Buckets
    _searching: Lock = field(default_factory=Lock)

    @classmethod
    def of(cls, settings: Settings, near: NearSearch | None) -> CaseDesk | None:
        """The desk that ``settings`` ask for; None if they ask for none."""
        cases = settings.cases
        if cases is None:
            return None
        return cls(
            cases,
            open_signer(cases.key),
            CaseSources(settings.store, cases.corpora, near),
            Buckets(cases.per_day / _DAY, cases.per_day, time.monotonic),
        )

    def admit(self, request: Request, caller: Caller) -> None:
        """Let one more case of a requester in. Raises 401: it has no token and needs one; 429: it
        has sent too many."""
        if caller.role == "public" and not self.settings.without_token:
            raise Problem(
                401,
                "Not authenticated",
                "This service takes cases from people with a token only",
                "Ask its operator for one, or write to the operator",
                headers={"WWW-Authenticate": 'Bearer realm="govray"'},
            )
        address = address_key(request.client.host if request.client else "unknown")
        who = f"address {address}" if caller.role == "public" else f"user {caller.name}"
        try:
            self.requests.take(who)
        except Problem as problem:
            most = self.settings.per_day
            raise Problem(
                429,
                "Too many requests",
                f"One requester may send {most} {'case' if most == 1 else 'cases'} a day",
                "Wait, or write to the operator",
                headers=problem.headers,
            ) from None

    @contextmanager
    def searching(self) -> Iterator[CaseSources]:
        """The sources, for one search at a time. Raises 503: another search goes on."""
        if not self._searching.acquire(blocking=False):
            raise Problem(
                503,
                "Busy",
                "Another case is being searched",
                "Try again in a minute",
                headers={"Retry-After": "60"},
            )
        try:
            yield self.sources
        finally:
            self._searching.release()


def search_bound(scope: Scope, body: int) -> RequestBound | None:
    """What a search may take, which is longer than other requests; None of those."""
    if scope["method"] == "POST" and _SEARCH.fullmatch(scope["path"]):
        return RequestBound(body=body, seconds=SEARCH_SECONDS)
    return None


@refuses(404)
def _desk(request: Request) -> CaseDesk:
    desk: CaseDesk | None = request.app.state.cases
    if desk is None:
        raise Problem(
            404,
            "Not found",
            "This service answers no cases",
            "Its operator turns them on: govray serve --cases FILE",
        )
    return desk


DeskDep = Annotated[CaseDesk, Depends(_desk)]
"""The desk of this service. Raises 404 where cases are off."""


@dataclass(frozen=True, kw_only=True)
class CaseFile:
    """What the file may say. See `CaseSettings`."""

    key: str
    without_token: bool = False
    per_day: int = 5
    corpora: str | None = None


_FILE = pydantic.TypeAdapter(CaseFile)


def read_cases(path: Path) -> CaseSettings:
    """How cases are answered, as a YAML file states it. A relative path of a key, or of the
    corpora, begins at that file."""
    do = "See docs/cases.md, Turn it on"
    stated = read_stated(path, _FILE, do=do)
    key = stated.key
    if in_file(key):
        key = str(path.parent / key)
    return CaseSettings(
        key=key,
        without_token=stated.without_token,
        per_day=stated.per_day,
        corpora=None if stated.corpora is None else _corpora(stated.corpora, path, do),
    )


def _corpora(text: str, path: Path, do: str) -> Place:
    try:
        found = place(text)
    except ValueError as error:
        raise UsageError(f"field 'corpora': {error}", where=str(path), do=do) from None
    return path.parent / found if isinstance(found, Path) else found
