"""Steps 2, 3, 12 and 17: what an attestation's envelope shows without the model folder."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Any

from govray.errors import Refused
from govray.governance.attestation import model_folder
from govray.governance.attestation.execution import Execution
from govray.governance.attestation.model_attestation import DISCLAIMER, Attestation, Claims
from govray.governance.formats.document import format_time, parse_time
from govray.governance.formats.dsse import Envelope
from govray.governance.trust.trust_state import TrustState, Verified


def check_signatures(
    data: bytes | Envelope, verified: Verified[Any], *, where: str = model_folder.ATTESTATION
) -> None:
    """Steps 2 and 7: every signature in the envelope is one of the signer's."""
    # Key hints and further signatures are not signed by anybody. Elsewhere they are harmless;
    # here they are bytes of the folder that no digest binds, so they are refused.
    envelope = data if isinstance(data, Envelope) else Envelope.parse(data)
    hints = [signature.keyid for signature in envelope.signatures]
    if sorted(hint or "" for hint in hints) != sorted(verified.keyids):
        raise Refused(
            "the envelope holds signatures or key hints other than the signer's", where=where
        )


def check_statement(attestation: Attestation, trust: TrustState, at: datetime) -> None:
    """Step 3: the run, then removals, before ``at``; under this trust root or an earlier one."""
    if parse_time(attestation.run.finished) > at:
        raise Refused(
            f"the run finished at {attestation.run.finished}, after the reference time",
            where="attestation run.finished",
        )
    for removal in attestation.removals:
        where = f"attestation removals of adapter {removal.adapter}"
        if parse_time(removal.removed) < parse_time(attestation.run.finished):
            raise Refused(
                f"removed at {removal.removed}, before the run finished at "
                f"{attestation.run.finished}",
                where=where,
            )
        if parse_time(removal.removed) > at:
            raise Refused(f"removed at {removal.removed}, after the reference time", where=where)
    named = attestation.trust_root
    if named.name != trust.root.name:
        raise Refused(
            f"the run was under the trust root {named.name!r}, this one is {trust.root.name!r}",
            where="attestation trustRoot",
        )
    if named.version > trust.root.version:
        raise Refused(
            f"the run was under version {named.version} of the trust root, this one is "
            f"version {trust.root.version}",
            where="attestation trustRoot",
            do="Get the current trust root from its owner.",
        )
    if named.version == trust.root.version and named.digest != trust.digest:
        raise Refused(
            f"another trust root with version {named.version} was used",
            where="attestation trustRoot",
        )


def check_assurance(attestation: Attestation) -> None:
    """Step 12: no assurance level that nothing here shows; the disclaimer word for word."""
    if attestation.assurance_level != "selfAttested":
        raise Refused(
            f"the folder holds nothing that shows more than selfAttested, it claims "
            f"{attestation.assurance_level}",
            where="attestation assuranceLevel",
        )
    if attestation.disclaimer != DISCLAIMER:
        raise Refused("the wording was changed", where="attestation disclaimer")


def check_execution(claims: Claims, stated: Execution, at: datetime) -> None:
    """Step 17: times in order, and the policy and the setup that the run had.

    The time of submission is of another clock, the service's, and in no order with them.
    Of ``commit`` nothing shows here: the folder has no manifest of a commit."""
    run = claims.run
    times = {
        "execution.registered": stated.registered,
        "run.started": run.started,
        "run.finished": run.finished,
        "execution.attested": stated.attested,
        "the reference time": format_time(at),
    }
    for (before, earlier), (after, later) in pairwise(times.items()):
        if earlier > later:
            raise Refused(f"{earlier}, which is after {after}", where=f"attestation {before}")
    if stated.policy not in (None, claims.policy.digest):
        raise Refused("it was submitted under another policy", where="attestation execution.policy")
    if claims.environment.setup != stated.code.setup:
        raise Refused(
            "the job reported another image or other packages", where="attestation execution.code"
        )
