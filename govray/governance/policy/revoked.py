"""Whether revocation lists take back a policy or a credential."""

from __future__ import annotations

from govray.errors import Untrusted
from govray.governance.policy.credential import Credential
from govray.governance.policy.depth_policy import Policy
from govray.governance.trust.revocation_list import (
    Revocations,
    Revoked,
    earliest,
    issuer_of,
    revoked_by,
)
from govray.governance.trust.trust_state import Verified


def revoked_credential(lists: Revocations, credential: Verified[Credential]) -> Revoked | None:
    """The earliest revocation of a credential, or of its issuer's delegation, or None.

    Raises:
        Untrusted: A list revokes it whose issuer could not have issued it.
    """
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


def revoked_policy(lists: Revocations, policy: Verified[Policy]) -> Revoked | None:
    """The earliest revocation of a policy, or of its last signer's delegation, or None."""
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
