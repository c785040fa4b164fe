"""Revocation lists that a service verified once, and need not verify for each request.

The same lists, under the same root and delegations, give the same answer until an authority
expires or a list's time of issue comes. An answer is kept for exactly that long. A refusal is an
answer too: a list that does not verify would otherwise cost the most.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from govray.errors import Malformed, Refused
from govray.governance.formats.canonical_json import sha256
from govray.governance.formats.document import parse_time
from govray.governance.trust.anchor import TrustAnchor, list_issued
from govray.governance.trust.revocation_list import Revocations
from govray.governance.trust.trust_state import TrustState

MAX_KEPT = 64
"""Answers; each holds its lists as they were read."""

_Key = tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class _Answer:
    """What was found, and the times from and until which it holds; None: without end."""

    found: Revocations | Refused | None
    since: datetime | None
    until: datetime | None

    def holds(self, at: datetime) -> bool:
        return (self.since is None or self.since <= at) and (self.until is None or at < self.until)


class VerifiedLists:
    """The answers of `TrustAnchor.lists` so far. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[_Key, _Answer] = {}

    def lists(self, anchor: TrustAnchor, trust: TrustState, *, at: datetime) -> Revocations | None:
        """What ``anchor.lists(trust, at=at)`` says. Raises as that."""
        key = (
            sha256(anchor.root),
            tuple(each.digest for each in trust.delegations),
            tuple(sha256(each) for each in (*anchor.revocations, *anchor.feed)),
            tuple(sha256(each) for each in anchor.pinned),
        )
        with self._lock:  # held over the work: who comes meanwhile wants the same
            answer = self._kept.get(key)
            if answer is None or not answer.holds(at):
                answer = self._kept[key] = _answer(anchor, trust, at)
                if len(self._kept) > MAX_KEPT:
                    del self._kept[next(iter(self._kept))]
        found = answer.found
        if isinstance(found, Refused):  # a new one: a raised error collects its traces
            raise type(found)(found.what, where=found.where, do=found.do)
        return found


def _answer(anchor: TrustAnchor, trust: TrustState, at: datetime) -> _Answer:
    changes = [parse_time(trust.root.expires)]
    changes += [parse_time(each.expires) for each in trust.authorities]
    changes += _issued((*anchor.revocations, *anchor.feed, *anchor.pinned))
    since = max((each for each in changes if each <= at), default=None)
    until = min((each for each in changes if each > at), default=None)
    try:
        return _Answer(anchor.lists(trust, at=at), since, until)
    except Refused as error:
        return _Answer(error, since, until)


def _issued(lists: Iterable[bytes]) -> Iterable[datetime]:
    for data in lists:
        try:
            yield list_issued(data)
        except Malformed:  # at any time
            continue
