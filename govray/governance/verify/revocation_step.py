"""Step 13: nothing that the run used was revoked before the run ended, nor its attestation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from govray.errors import Refused
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.formats.document import format_time, parse_time
from govray.governance.policy.credential import Credential
from govray.governance.policy.depth_policy import Policy
from govray.governance.policy.revoked import revoked_credential, revoked_error, revoked_policy
from govray.governance.record.gates import Gate
from govray.governance.record.ledger import Ledger
from govray.governance.trust.revocation_list import Revocations, Revoked
from govray.governance.trust.trust_state import Verified

_THEN = ", and the run used it then"


def check_revocations(
    lists: Revocations | None,
    attested: Verified[Attestation],
    policy: Verified[Policy],
    credentials: Mapping[str, Verified[Credential]],
    ledger: Ledger,
    gates: Sequence[Gate],
    at: datetime,
) -> dict[str, Revoked]:
    """What is revoked from after the run, or after ``at``, by its name.
    ``lists``: the lists that were read before step 2; None without any."""
    if lists is None:
        return {}
    finished = parse_time(attested.document.run.finished)
    later: dict[str, Revoked] = {}
    if found := check_attestation(lists, attested, at):
        later["attestation"] = found
    if found := revoked_policy(lists, policy):
        if found.since <= finished:
            raise revoked_error(f"policy {policy.document}", found, _THEN)
        later["policy"] = found
    used = {corpus for leaf in ledger.steps for corpus in leaf.corpora}
    for corpus, credential in credentials.items():
        found = revoked_credential(lists, credential)
        if found is None:
            continue
        if corpus in used and found.since <= _used_until(corpus, gates, ledger, finished):
            raise revoked_error(f"credential of corpus {corpus}", found, _THEN)
        later[corpus] = found
    return later


def check_attestation(
    lists: Revocations, attested: Verified[Attestation], at: datetime
) -> Revoked | None:
    """Step 13 for the attestation: a revocation that counts only from after ``at``, or None."""
    signers = [authority.name for authority in attested.authorities]
    found = lists.of_attestation(attested.digest, signers)
    if found is None or found.since > at:
        return found
    raise Refused(
        f"revoked since {format_time(found.since)} ({found.reason})",
        where="attestation",
        do=f"That is list {found.sequence} of {found.issuer}. Ask its issuer for the model as it "
        "is now",
    )


def _used_until(corpus: str, gates: Sequence[Gate], ledger: Ledger, finished: datetime) -> datetime:
    """The last instant at which the run may have used ``corpus``, by its own times."""
    branches = {leaf.branch for leaf in ledger.steps if corpus in leaf.corpora}
    ends = {g.branch: g.last_use for g in gates if g.corpus == corpus and g.last_use}
    return max(ends.get(branch, finished) for branch in branches)
