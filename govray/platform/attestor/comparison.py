"""What the signer knows by itself of a run, and what it refuses to sign.

A parser that hostile bytes took over may say anything. So nothing that the register knows is taken
from it: run, commit, ledger's head, root and times, and policy and manifest where they are
registered. A run whose file starts from weights names them. What the register doesn't know remains
the job's statement, and the attestation says so.
"""

from __future__ import annotations

from datetime import datetime

from govray.errors import Refused
from govray.governance.attestation.environment import Setup
from govray.governance.attestation.execution import CodeFacts, Execution, Origin
from govray.governance.attestation.signing import UnsignedModel
from govray.governance.formats.document import format_time
from govray.platform.attestor.register_tables import Accepted, Attempt, Posted


def origin(accepted: Accepted, attempt: Attempt) -> Origin:
    """Whose code ran. It is the deployment's where the file names no other, nothing was added to
    what the operator installed, and nothing else could reach the run. No image is allowed yet."""
    added = accepted.archive or any(attempt.setup)
    own = accepted.own_code and accepted.isolation == "run" and not added
    return "deployment" if own else "submitted"


def execution(accepted: Accepted, attempt: Attempt, last: Posted, *, at: datetime) -> Execution:
    """What the operator's records say of how a run came to be.

    Args:
        attempt: Whose last post ``last`` is.
        at: The attestor's time.
    """
    given = {name: getattr(attempt, name) for name in Setup.model_fields}
    assert last.commit is not None
    return Execution(
        submission=accepted.submission,
        user=accepted.user,
        project=accepted.project,
        policy=accepted.policy,
        submitted=accepted.submitted,
        code=CodeFacts(
            origin=origin(accepted, attempt),
            archive=accepted.archive,
            setup=Setup(**given) if any(given.values()) else None,
        ),
        isolation=accepted.isolation,
        attempts=last.attempt,
        commit=last.commit,
        registered=accepted.registered,
        attested=format_time(at),
    )


def compare(found: UnsignedModel, accepted: Accepted, last: Posted) -> None:
    """Refuse what is not of the registered run. ``found``: what the parser says that the run's
    folder says."""
    claims = found.claims
    facts = {
        "run": (claims.run.id, last.run),
        "commit": (found.commit, last.commit),
        "trust root": (claims.trust_root.digest, accepted.trust_root),
        "ledger's size": (claims.ledger.size, last.ledger_size),
        "ledger's root": (claims.ledger.root, last.ledger_root),
        "assurance level": (claims.assurance_level, "selfAttested"),
    }
    for what, (claimed, registered) in facts.items():
        if claimed != registered:
            # What was found is not repeated: it may be another run's.
            raise Refused(f"its {what} is not the registered {registered}", where=f"run {last.run}")
    if accepted.manifests and claims.manifest not in accepted.manifests:
        raise Refused("the project may not read its prepared data", where=f"run {last.run}")
    if accepted.pretrained and not (claims.run.initial_weights or claims.run.ancestry):
        raise Refused("its file starts from weights, and it names none", where=f"run {last.run}")
    if claims.removals or claims.replays:
        raise Refused("a job's replays and removals count for nothing", where=f"run {last.run}")
