"""Follow revocation lists during a run: rank 0 rereads them outside the step.

A list is a file that its issuer replaces by a newer one, best by a rename. Rank 0 checks every few
seconds and verifies with the trust root's public keys. It tells the other ranks in the next step's
agreement (`govray.engine.collective.agreement`), so that all act in the same step.

Invariants:

* Lists only grow. An older list is refused, also by a later attempt or driver, because the run's
  folder keeps the newest list of each issuer.
* Fail closed, after a delay. A list may be unreadable, not verify, or be older than the trust root
  accepts. The last good one then stays in force for `PATIENCE_S`, and after that the run stops.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from govray.errors import CouldNotCheck, GovrayError, RankFailed, UsageError
from govray.governance.policy.credential import Credential
from govray.governance.policy.depth_policy import Policy
from govray.governance.policy.revoked import revoked_credential, revoked_policy
from govray.governance.trust.revocation_list import (
    MAX_BYTES,
    Revocations,
    Revoked,
    check_fresh,
    verify_revocations,
)
from govray.governance.trust.trust_state import TrustState, Verified
from govray.storage.atomic_file import make_folder, write_whole
from govray.storage.place import Place, place

KEPT = "revocations"
"""Folder inside a run's with the lists accepted last, one file for each issuer."""

POLL_S = 2.0
PATIENCE_S = 60.0
"""How long a list may be unreadable, half-written or ahead of this machine's clock."""


@dataclass(frozen=True, kw_only=True)
class RevocationSource:
    """What is needed to follow lists; public parts only.

    Attributes:
        root, delegations: Envelopes, as verified.
        credentials: Corpus to credential, of the corpora that the run reads.
        accepted: The lists that the run began with.
    """

    paths: tuple[str, ...]
    root: bytes
    delegations: tuple[bytes, ...]
    policy: Verified[Policy]
    credentials: Mapping[str, Verified[Credential]]
    accepted: Revocations


def credential_name(corpus: str) -> str:
    """The name under which a corpus's credential expires."""
    return f"credential {corpus}"


def policy_name(policy: Policy) -> str:
    """The name under which the policy expires."""
    return f"policy {policy.name}"


def revoked_names(
    lists: Revocations, policy: Verified[Policy], credentials: Mapping[str, Verified[Credential]]
) -> dict[str, Revoked]:
    """What the lists revoke of a run, by the name under which it expires."""
    found = {policy_name(policy.document): revoked_policy(lists, policy)} | {
        credential_name(corpus): revoked_credential(lists, credential)
        for corpus, credential in credentials.items()
    }
    return {name: revoked for name, revoked in found.items() if revoked is not None}


def read_lists(paths: Sequence[str | Place]) -> tuple[bytes, ...]:
    """The bytes of the lists' files."""
    found = []
    for path in paths:
        try:
            with place(path).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise UsageError(
                f"the revocation list cannot be read: {error.strerror}", where=str(path)
            ) from error
        if len(data) > MAX_BYTES:
            raise UsageError(f"larger than {MAX_BYTES} bytes", where=str(path))
        found.append(data)
    return tuple(found)


def keep_lists(run: Place, trust: TrustState, envelopes: Sequence[bytes], *, at: datetime) -> None:
    """Keep the accepted lists for later attempts."""
    for data in envelopes:
        issuer = verify_revocations(trust, data, at=at).document.issuer
        make_folder(run / KEPT)
        write_whole(run / KEPT / f"{issuer}.dsse.json", data)


def kept_lists(run: Place, trust: TrustState, *, at: datetime) -> Revocations | None:
    """The lists that a run accepted last, if any."""
    kept: list[Place] = sorted((run / KEPT).glob("*.dsse.json"), key=str)
    return Revocations.load(trust, [each.read_bytes() for each in kept], at=at) if kept else None


class RevocationFeed:
    """The lists of a run as rank 0 knows them now; `start` begins to read them again.

    Args:
        at: The time by this machine's clock, aware.
    """

    def __init__(self, source: RevocationSource, run: Place, *, at: datetime) -> None:
        self._source = source
        self._run = run
        self._accepted = source.accepted
        self._failing_since: float | None = None
        self._trouble: GovrayError | None = None
        try:
            self._accepted = kept_lists(run, self._trust(at), at=at) or source.accepted
        except GovrayError as error:  # on rank 0 only: the agreement tells the others
            self._trouble = error
        self._read: tuple[bytes, ...] = ()
        self._revoked = revoked_names(self._accepted, source.policy, source.credentials)
        self._end = threading.Event()

    @property
    def trouble(self) -> GovrayError | None:
        """Why the run must stop, if it must."""
        return self._trouble

    def since(self) -> dict[str, datetime]:
        """What is revoked, by name, and from when on. Never raises."""
        return {name: revoked.since for name, revoked in self._revoked.items()}

    def lists(self) -> dict[str, str]:
        """What is revoked, by name → digest of the list."""
        return {name: revoked.list for name, revoked in self._revoked.items()}

    def start(self) -> None:
        """Read every few seconds, in a thread that ends with the process or with `close`."""
        threading.Thread(target=self._follow, name="govray-revocations", daemon=True).start()

    def close(self) -> None:
        """Stop reading."""
        self._end.set()

    def look(self, *, at: datetime, elapsed_s: float) -> None:
        """Read the lists once.

        Args:
            at: The time by this machine's clock, aware.
            elapsed_s: Seconds by a clock that only goes forward.
        """
        try:
            data = read_lists(self._source.paths)
            if data != self._read:
                self._accept(data, at)
            check_fresh(self._trust(at), self._accepted, at=at)
        except GovrayError as error:
            if self._failing_since is None:
                self._failing_since = elapsed_s
            if elapsed_s - self._failing_since >= PATIENCE_S:
                self._trouble = (
                    RankFailed(error.what, where=error.where, do=error.do)
                    if isinstance(error, UsageError | CouldNotCheck)
                    else error
                )
            return
        self._failing_since = None

    def _accept(self, data: tuple[bytes, ...], at: datetime) -> None:
        source, trust = self._source, self._trust(at)
        lists = Revocations.load(trust, data, at=at, previous=self._accepted)
        # This order matters: revocations are known before the lists count as read.
        self._revoked = revoked_names(lists, source.policy, source.credentials)
        self._accepted = lists
        try:
            keep_lists(self._run, trust, data, at=at)
        except OSError as error:
            raise UsageError(
                f"the revocation lists can't be kept: {error.strerror}", where=str(self._run)
            ) from error
        self._read = data

    def _trust(self, at: datetime) -> TrustState:
        return TrustState.load(self._source.root, at=at, delegations=self._source.delegations)

    def _follow(self) -> None:
        while not self._end.wait(POLL_S):
            self.look(at=datetime.now(UTC), elapsed_s=time.monotonic())
