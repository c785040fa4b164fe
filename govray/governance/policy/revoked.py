"""Whether revocation lists take back a policy or a credential."""

from __future__ import annotations

from datetime import datetime

from govray.errors import Refused, Untrusted
from govray.governance.formats.document import format_time
from govray.governance.policy.credential import Credential
from govray.governance.trust.revocation_list import (
    Revocations,
    Revoked,
    earliest,
    issuer_of,
    revoked_by,
)
from govray.governance.trust.trust_state import D, TrustState, Verified


def revoked_credential(lists: Revocations, credential: Verified[Credential]) -> Revoked | None:
    """The earliest revocation of a credential, or of its issuer's delegation, or None.
    Raises ``Untrusted``: a list revokes it whose issuer could not have issued it."""
    document = credential.document
    found = []
    for each in lists.lists:
        for entry in each.document.entries:
            if entry.credential != credential.digest and entry.corpus != document.corpus:
                continue
            if not issuer_of(each).covers(
                corpus=document.corpus,
                license_category=document.license_category,
                jurisdiction=document.jurisdiction,
                sensitivity=document.sensitivity,
            ):
                raise Untrusted(
                    f"revokes the credential of corpus {document.corpus!r}, which is outside "
                    "the scope of its issuer",
                    where=str(each.document),
                    do="Leave the list out, or have an authority in charge revoke it",
                )
            found.append(revoked_by(each, entry))
    if delegate := lists.delegates.get(document.issuer):
        found.append(delegate)
    return earliest(found)


def revoked_policy(lists: Revocations, policy: Verified[D]) -> Revoked | None:
    """The earliest revocation of a policy, or of promotion gates, or of the last signer's
    delegation, or None."""
    found = [
        revoked_by(each, entry)
        for each in lists.lists
        for entry in each.document.entries
        if entry.policy == policy.digest
    ]
    delegates = [lists.delegates.get(authority.name) for authority in policy.authorities]
    gone = [each for each in delegates if each is not None]
    if delegates and len(gone) == len(delegates):
        found.append(max(gone, key=lambda revoked: revoked.since))
    return earliest(found)


def check_unrevoked_policy(trust: TrustState, policy: Verified[D], *, at: datetime) -> None:
    """Refuse a policy that is revoked at ``at``."""
    found = revoked_policy(trust.revocations, policy) if trust.revocations else None
    if found and found.since <= at:
        raise revoked_error(f"policy {policy.document}", found)


def check_unrevoked_credential(
    trust: TrustState, credential: Verified[Credential], *, at: datetime
) -> None:
    """Refuse a credential that is revoked at ``at``.
    Raises ``Refused``: it is; or a list revokes it whose issuer could not have issued it."""
    found = revoked_credential(trust.revocations, credential) if trust.revocations else None
    if found and found.since <= at:
        raise revoked_error(f"credential of corpus {credential.document.corpus}", found)


def revoked_error(what: str, found: Revoked, then: str = "") -> Refused:
    """That ``what`` is revoked, with the list that says so."""
    return Refused(
        f"revoked since {format_time(found.since)} ({found.reason}){then}",
        where=what,
        do=f"That is list {found.sequence} of {found.issuer}; ask its issuer",
    )
