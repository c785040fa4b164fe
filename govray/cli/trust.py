"""What a verb checks against: a trust root and revocation lists, given or pinned earlier.

Pinning copies a root, and the lists given with it, to the user's configuration folder. The copy
lies beside no model and in no repository. A newer root replaces the pinned one only if the pinned
root's keys signed the change. A newer list replaces only a list that it follows. Pinned lists count
with the pinned root, and with a given root of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from govray.cli import user_files
from govray.cli.option_group import given_time
from govray.cli.output import AllowUncovered, At, RevocationLists, TrustRoot
from govray.errors import CouldNotCheck, Damaged, Refused, UsageError

if TYPE_CHECKING:
    from govray.governance.record.prepared_records import ReadPart
    from govray.governance.trust.anchor import PinnedLists, TrustAnchor
    from govray.governance.trust.trust_state import TrustState
    from govray.governance.verify.verifier import VerifiedModel


def reference_time(at: str | None) -> datetime:
    return datetime.now(UTC) if at is None else given_time(at, "--at")


def root_path(given: Path | None) -> Path:
    """The file of the trust root: the given one, or the pinned one. Raises `Refused`: it does not
    follow the pinned one of its name."""
    from govray.governance.trust.anchor import check_follows_pinned, pinned_trust_root

    if given is not None:
        if not given.is_file():
            raise UsageError("no such file", where=str(given), do="Check --trust-root.")
        check_follows_pinned(user_files.read_signed(given), where=str(given))
        return given
    pinned = pinned_trust_root()
    if not pinned.is_file():
        raise CouldNotCheck(
            "no trust root was given and none is pinned",
            where="--trust-root",
            do="Get the root from its owner, not with the files, and give it. --pin keeps it for "
            "later.",
        )
    return pinned


def anchor(root: Path | None, revocations: Sequence[Path] | None = None) -> TrustAnchor:
    """What to check against: the given root and lists, or the pinned ones."""
    from govray.governance.trust.anchor import TrustAnchor

    root_path(root)
    for each in revocations or ():
        if not each.exists():
            raise UsageError("no such file", where=str(each), do="Check --revocations.")
    return TrustAnchor.read(root, revocations or ())


@dataclass(frozen=True, kw_only=True)
class Trusted:
    """The options that say what a verb checks against, and as of when."""

    trust_root: TrustRoot = None
    revocations: RevocationLists = None
    at: At = None

    def anchor(self) -> TrustAnchor:
        return anchor(self.trust_root, self.revocations)

    def time(self) -> datetime:
        return reference_time(self.at)


@dataclass(frozen=True, kw_only=True)
class ModelTrust(Trusted):
    """The options by which verbs verify a model folder."""

    allow_uncovered: AllowUncovered = None

    def verify(self, model: Path, *, records: ReadPart | None = None) -> VerifiedModel:
        """The model folder, verified. Raises as `anchor` and `govray.verify`."""
        from govray.governance.verify.verifier import verify

        return verify(
            model,
            trust_root=self.anchor(),
            at=self.time(),
            allow_uncovered=self.allow_uncovered or (),
            records=records,
        )


def lists(given: Sequence[Path] | None) -> tuple[tuple[bytes, ...], PinnedLists]:
    """The revocation lists that are given, and the pinned ones, which count beside them."""
    from govray.governance.trust.anchor import PinnedLists, read_lists

    return read_lists(given or ()), PinnedLists.read()


def load(
    given: Path | None,
    *,
    at: datetime,
    delegations: Sequence[Path],
    checked: Path,
    revocations: Sequence[Path] | None = None,
) -> TrustState:
    """The trust state to check ``checked`` against. Raises `Refused`: the root lies inside the
    folder ``checked``, or is not sound at ``at``."""
    path = root_path(given)
    if checked.is_dir() and path.resolve().is_relative_to(checked.resolve()):
        raise Refused(
            "a trust root from inside the folder being verified is never trusted",
            where=str(path),
            do="If this is not the model's folder, name that; else get the root from its owner.",
        )
    return anchor(given, revocations).load(
        at=at, delegations=[user_files.read(each) for each in delegations]
    )


def pin(root: Path, lists: Sequence[Path], trust: TrustState, *, at: datetime) -> Path:
    """Keep ``root`` for later, and the lists that were given with it; return where the root is.

    Args:
        lists: Files of lists, or folders of them.
        trust: What both gave, already verified.

    Raises:
        Refused: it does not follow the pinned one. It has an older version or another name, or the
            pinned keys did not sign it. Or a list goes behind one that was pinned.
    """
    from govray.governance.formats.canonical_json import sha256
    from govray.governance.formats.dsse import Envelope
    from govray.governance.trust.anchor import (
        LIST_SUFFIX,
        TrustAnchor,
        pinned_revocations,
        pinned_trust_root,
        read_lists,
    )
    from govray.governance.trust.trust_state import TrustState

    pinned = pinned_trust_root()
    data = user_files.read(root)
    previous = user_files.read(pinned) if pinned.is_file() else None
    try:
        loaded = TrustState.load(data, at=at, previous=previous)
    except Refused as error:
        if previous is None:
            raise
        raise Refused(
            f"does not follow the pinned root: {error.what}",
            where=str(root),
            do=f"If its owner confirms the change to you in person, remove {pinned} first.",
        ) from None
    if loaded.digest != trust.digest:
        raise Damaged(
            "the file changed while it was being checked, so nothing was pinned",
            where=str(root),
            do="Check it again when nothing writes to the file.",
        )
    kept = pinned_revocations()
    given = {sha256(Envelope.parse(each).payload): each for each in read_lists(lists)}
    before = read_lists([kept]) if kept.is_dir() else ()
    TrustAnchor(data, tuple(given.values()), before).apply(trust, at=at)
    user_files.make_folder(pinned.parent)
    user_files.write(pinned, data)
    for each in trust.revocations.lists if trust.revocations else ():
        if each.digest in given:
            user_files.make_folder(kept)
            user_files.write(kept / f"{each.document.issuer}{LIST_SUFFIX}", given[each.digest])
    return pinned
