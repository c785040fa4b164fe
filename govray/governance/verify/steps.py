"""The verifier's seventeen steps: number, name, and what each needs.

The one list: the verifier and the check of an envelope alone import it. The function of a step says
what has to hold.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One step.
    ``needs``: what the step reads besides the attestation's envelope; None if nothing."""

    number: int
    name: str
    needs: str | None = None


TRUST_ROOT = Step(1, "trust root")
SIGNATURE = Step(2, "signature")
STATEMENT = Step(3, "statement")
FILES = Step(4, "files", "the model's files")
POLICY = Step(5, "policy", "the signed policy in the model folder")
CREDENTIALS = Step(6, "credentials", "the credentials in the model folder")
MANIFEST = Step(7, "manifest", "the prepare manifest in the model folder")
ROUTES = Step(8, "routes", "policy, credentials and the model's files")
PLAN = Step(9, "plan", "the prepare manifest in the model folder")
LEDGER = Step(10, "ledger", "the ledger and its checkpoint in the model folder")
COVERAGE = Step(11, "coverage", "the ledger in the model folder")
ASSURANCE = Step(12, "assurance")
REVOCATIONS = Step(13, "revocations", "revocation lists")
REPLAY_CHECKS = Step(14, "replay checks", "the replay checks in the model folder")
TIMESTAMP = Step(15, "timestamp", "the timestamps in the model folder")
WITNESSES = Step(16, "witnesses", "the cosigned head in the model folder")
EXECUTION = Step(17, "execution")

STEPS = (
    TRUST_ROOT,
    SIGNATURE,
    STATEMENT,
    FILES,
    POLICY,
    CREDENTIALS,
    MANIFEST,
    ROUTES,
    PLAN,
    LEDGER,
    COVERAGE,
    ASSURANCE,
    REVOCATIONS,
    REPLAY_CHECKS,
    TIMESTAMP,
    WITNESSES,
    EXECUTION,
)
"""In order. Part of the thirteenth comes early: a delegation that was revoked signs nothing."""
