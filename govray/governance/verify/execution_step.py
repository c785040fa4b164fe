"""Step 17: what the operator says of the run's execution agrees with the rest."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

from govray.errors import Refused
from govray.governance.attestation.execution import Execution
from govray.governance.attestation.model_attestation import Claims
from govray.governance.formats.document import format_time


def check_execution(claims: Claims, stated: Execution, at: datetime) -> None:
    """Times in order, and the policy and the setup that the run had. The time of submission is of
    another clock, the service's, and in no order with them.
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
