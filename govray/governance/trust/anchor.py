"""What a verifier trusts, before any file is looked at: a root and revocation lists.

A `TrustAnchor` is bytes, given or pinned, that came by another way than what is verified. RFC 6024
calls the root of such trust an anchor. This one value travels to every verb and service that judges
somebody else's files, so that none of them forgets the lists. `load` applies the root's rule of
freshness: a root that asks for a list, or for a recent one, gives no trust state without it.

Invariants:
    * Lists that were pinned are never gone behind: a given list of the same issuer follows them.
    * A given list counts, or there is no answer. The delegations may come from whoever is judged,
      so a list whose issuer they do not name is never dropped in silence.
    * Of a feed and of pinned lists, one that does not concern this root is passed over. So is a
      pinned one that this root does not carry. `Revocations.passed_over` says which, and why.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Self

from govray.errors import CouldNotCheck, Refused, Untrusted, UsageError
from govray.governance.formats.document import parse_time
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import Sealed, read
from govray.governance.trust.revocation_list import (
    MAX_BYTES,
    RevocationList,
    Revocations,
    check_fresh,
)
from govray.governance.trust.trust_state import TrustState, check_follows, root_name

# A person's own trust root: where it is kept, and that a given one never goes behind it.
#
# `govray verify --pin` keeps a copy of a root in the person's configuration folder. From then on
# no verb accepts an older root of that name, from anyone. An older root names keys and policy
# versions that its owner has withdrawn since. A root of another name is somebody else's, and none
# of the pinned one's business.


def pinned_trust_root() -> Path:
    """Where a person's own trust root is looked for when none is given."""
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "govray" / "trust-root.json"


def check_follows_pinned(root: bytes, *, where: str) -> None:
    """Refuse a root that does not follow the pinned one of the same name, if there is one.

    Raises:
        Refused: An older version, another content of the same version, or a newer one that the
            pinned keys did not sign. Or one of the two is not a trust root; the error names it.
    """
    pinned = pinned_trust_root()
    try:
        previous = pinned.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(
            f"the pinned trust root cannot be read: {error.strerror}", where=str(pinned)
        ) from None
    if previous == root:
        return
    try:
        name = root_name(previous)
    except Refused as error:
        raise Refused(
            f"the pinned trust root is damaged: {error.what}",
            where=str(pinned),
            do=f"Get the root from its owner again, remove {pinned}, and pin the new one with "
            "govray verify --pin.",
        ) from None
    if root_name(root) != name:
        return
    try:
        check_follows(root, previous)
    except Refused as error:
        raise Refused(
            f"does not follow the pinned root: {error.what}",
            where=where,
            do=f"If its owner confirms the change to you in person, remove {pinned} first.",
        ) from None


MAX_ROOT = 1 << 20

LIST_SUFFIX = ".dsse.json"


@dataclass(frozen=True)
class TrustAnchor:
    """A trust root and revocation lists, as bytes from elsewhere than what is verified.

    Attributes:
        revocations: Envelopes of the lists that were given for what is verified.
        pinned: Envelopes of lists that were accepted earlier; they count for issuers of whom
            none is given.
        feed: Envelopes of lists that are at hand for many things, of which not all concern each.
        source: The file that the root was read from, if it was.
    """

    root: bytes
    revocations: tuple[bytes, ...] = ()
    pinned: tuple[bytes, ...] = ()
    feed: tuple[bytes, ...] = ()
    source: Path | None = field(default=None, compare=False)

    @classmethod
    def read(
        cls,
        root: Path | str | bytes | None = None,
        revocations: Sequence[Path | str | bytes] = (),
    ) -> Self:
        """The given root and lists. Without a root, what is pinned.

        Args:
            root: Envelope, or its path; None: the pinned one. The lists pinned beside that count
                for it, and for a file of a root of its name.
            revocations: Envelopes, their paths, or folders that hold them.

        Raises:
            CouldNotCheck: No root is given and none is pinned.
            Refused: The root does not follow the pinned one of its name.
        """
        if isinstance(root, bytes):
            return cls(root, read_lists(revocations))
        own = pinned_trust_root()
        path = own if root is None else Path(root)
        if root is None and not path.is_file():
            raise CouldNotCheck(
                "no trust root was given and none is pinned",
                where=str(path),
                do="Give one with --trust-root, or put it there.",
            )
        data = read_file(path, MAX_ROOT)
        if root is not None:
            check_follows_pinned(data, where=str(path))
        pinned = PinnedLists.read().of(root_name(data))
        return cls(data, read_lists(revocations), pinned, source=path)

    def load(self, *, at: datetime, delegations: Iterable[bytes] = ()) -> TrustState:
        """The trust state at ``at``, with the lists in it.

        Args:
            at: Reference time, aware.
            delegations: Envelopes, in any order.

        Raises:
            CouldNotCheck: The root asks for a list that is not here, or for a newer one. Or as
                `lists`.
        """
        return self.apply(TrustState.load(self.root, at=at, delegations=delegations), at=at)

    def apply(self, trust: TrustState, *, at: datetime) -> TrustState:
        """``trust``, which was loaded from this root, with the lists in it. Raises as `load`."""
        lists = self.lists(trust, at=at)
        check_fresh(trust, lists, at=at)
        return replace(trust, revocations=lists)

    def as_feed(self) -> Self:
        """The same, whose given lists are a feed: for many models, each with its delegations."""
        return replace(self, revocations=(), feed=(*self.feed, *self.revocations))

    def lists(self, trust: TrustState, *, at: datetime) -> Revocations | None:
        """The lists that concern ``trust``, whether or not they are fresh; None if none is here.

        A pinned list that was issued after ``at`` counts for nothing: it was not there yet. One
        that this root does not carry, as after a change of its issuer's keys, is absent; a given
        list still has to follow it.

        Raises:
            Malformed, Untrusted: As `Revocations.load`; or a given list goes behind a pinned one.
            CouldNotCheck: The issuer of a given list is no authority here.
        """
        names = {authority.name for authority in trust.authorities}
        over = []
        for data in self.revocations:
            if (issuer := _read(data).document.issuer) not in names:
                raise CouldNotCheck(
                    f"a revocation list of {issuer!r} is given, which is no authority here: its "
                    "delegation is not here",
                    where="revocations",
                    do="Verify with its delegation, or leave the list out if it is not yours",
                )
        feed = []
        for data in self.feed:
            document = _read(data).document
            if document.issuer in names:
                feed.append(data)
            else:
                over.append(f"{document} (its issuer is no authority here)")
        new = Revocations.load(trust, (*self.revocations, *feed), at=at)
        earlier, gone = Revocations(()), []
        pinned = [(_read(data), data) for data in self.pinned]
        for old, data in sorted(pinned, key=lambda each: each[0].document.sequence):
            document = old.document
            if document.issuer not in names:
                over.append(f"pinned {document} (its issuer is no authority here)")
            elif parse_time(document.issued) > at:
                over.append(f"pinned {document} (issued at {document.issued}, after this time)")
            else:
                try:
                    one = Revocations.load(trust, [data], at=at)
                except Untrusted as error:
                    gone.append((old, error.what))
                else:
                    earlier = one.following(trust, earlier)
        new = new.following(trust, earlier)
        for old, why in gone:
            if not new.check_follows(old):
                over.append(f"pinned {old.document} ({why})")
        if not new.lists and not over:
            return None
        return replace(new, passed_over=tuple(over))


@dataclass(frozen=True)
class PinnedLists:
    """The lists that a person pinned, and the name of the root that they go with.
    Another root's authorities may have the same names: its lists follow none of these."""

    root: str | None = None
    envelopes: tuple[bytes, ...] = ()

    @classmethod
    def read(cls) -> Self:
        """Those of the person who runs this. None, if no root is pinned."""
        own, kept = pinned_trust_root(), pinned_revocations()
        if not own.is_file() or not kept.is_dir():
            return cls()
        return cls(root_name(read_file(own, MAX_ROOT)), read_lists([kept]))

    def of(self, root: str) -> tuple[bytes, ...]:
        """Those that count under the root of this name."""
        return self.envelopes if root == self.root else ()


def read_lists(given: Sequence[Path | str | bytes]) -> tuple[bytes, ...]:
    """The envelopes of revocation lists: as they are, from files, or all of a folder."""
    found: list[bytes] = []
    for each in given:
        if isinstance(each, bytes):
            found.append(each)
            continue
        path = Path(each)
        files = [path]
        if path.is_dir():
            files = sorted(path.glob(f"*{LIST_SUFFIX}"))
            if not files and path != pinned_revocations():
                raise UsageError(
                    "the folder holds no revocation list",
                    where=str(path),
                    do=f"Put the lists there, as NAME{LIST_SUFFIX}",
                )
        found += [read_file(file, MAX_BYTES) for file in files]
    return tuple(found)


def read_file(path: Path, limit: int) -> bytes:
    """A file's bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror}", where=str(path)) from error
    if len(data) > limit:
        raise UsageError(f"larger than {limit} bytes", where=str(path))
    return data


def pinned_revocations() -> Path:
    """The folder, beside the pinned root, of the revocation lists that go with it."""
    return pinned_trust_root().parent / "revocations"


def list_issued(data: bytes) -> datetime:
    """When a list says it was issued, aware; nothing of it is verified."""
    return parse_time(_read(data).document.issued)


def _read(data: bytes) -> Sealed[RevocationList]:
    """What it says: decides only whether it concerns a root, never that it holds."""
    envelope = Envelope.parse(data, limit=MAX_BYTES, where="revocations")
    return read(RevocationList, envelope, where="revocations")
