"""What an attestation's envelope alone can show of the verifier's steps.

Without the model folder, five steps can be checked: trust root, signature, statement, assurance,
execution.
The revocation lists show whether the attestation itself is revoked. The other steps compare it
with files; they are named as not checked, with what each needs. So no outcome here says
``verified``. The caller gives the trust roots; none is chosen here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from govray.errors import Refused
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.formats.dsse import Envelope
from govray.governance.trust.anchor import PinnedLists, TrustAnchor
from govray.governance.trust.revocation_list import stale
from govray.governance.trust.trust_state import TrustState, Verified
from govray.governance.trust.verified_lists import VerifiedLists
from govray.governance.verify import steps
from govray.governance.verify.envelope_steps import (
    check_assurance,
    check_execution,
    check_signatures,
    check_statement,
)
from govray.governance.verify.revocation_step import check_attestation
from govray.governance.verify.steps import STEPS, Step

StepStatus = Literal["passed", "failed", "notChecked"]


@dataclass(frozen=True)
class StepOutcome:
    """One step: its number and name in the verifier, and why it stands as it does."""

    number: int
    name: str
    status: StepStatus
    why: str | None = None

    @classmethod
    def of(cls, step: Step, status: StepStatus, why: str | None = None) -> StepOutcome:
        """This step's."""
        return cls(step.number, step.name, status, why)


@dataclass(frozen=True)
class EnvelopeCheck:
    """All seventeen steps, in order.

    Attributes:
        attested: What was signed, if steps 1 to 3 passed.
        trust: The root that it was checked against; None if no given one carries it.
        stale: What the root's rules of freshness lack: nobody knows whether it is revoked.
    """

    attested: Verified[Attestation] | None
    trust: TrustState | None
    steps: tuple[StepOutcome, ...]
    stale: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether a step that was checked did not pass."""
        return any(step.status == "failed" for step in self.steps)


TrustGiven = tuple[bytes, Sequence[bytes]]
"""A trust root's envelope, and those of the delegations that are taken with it."""


def check_envelope(
    data: bytes,
    roots: Sequence[TrustGiven],
    *,
    at: datetime,
    revocations: Sequence[bytes] = (),
    pinned: PinnedLists | None = None,
    verified: VerifiedLists | None = None,
) -> EnvelopeCheck:
    """Check what can be checked of an attestation's envelope without its folder.

    Args:
        roots: The trust roots that the caller trusts, in the order of trying, each with the
            delegations by which further operators are known. Of each root one version, the newest:
            what one refuses, the next may pass, and an older version knows withdrawn keys.
        at: Reference time, aware.
        revocations: Envelopes of revocation lists, as a feed: those that concern none of the
            roots are passed over.
        pinned: Lists that were accepted earlier.
        verified: Those that were verified for earlier checks.
    """
    refused: list[tuple[Step, Refused]] = []
    envelope: Envelope | None = None  # one, which remembers the keys that were tried
    for root, delegations in roots:
        step = steps.TRUST_ROOT
        try:
            trust = TrustState.load(root, at=at, delegations=delegations)
            step = steps.SIGNATURE
            envelope = envelope or Envelope.parse(data, where=model_folder.ATTESTATION)
            attested = trust.verify(
                Attestation, envelope, role="operator", at=at, where=model_folder.ATTESTATION
            )
            check_signatures(envelope, attested)
            step = steps.STATEMENT
            check_statement(attested.document, trust, at)
        except Refused as error:
            refused.append((step, error))
            continue
        kept = pinned.of(trust.root.name) if pinned else ()
        anchor = TrustAnchor(root, feed=tuple(revocations), pinned=kept)
        lacking, revoked = _revocations(
            anchor, trust, attested, data, at, verified or VerifiedLists()
        )
        return EnvelopeCheck(attested, trust, _steps(attested, revoked, at), lacking)
    return EnvelopeCheck(None, None, _none(refused))


def _revocations(
    anchor: TrustAnchor,
    trust: TrustState,
    attested: Verified[Attestation],
    attested_envelope: bytes,
    at: datetime,
    verified: VerifiedLists,
) -> tuple[tuple[str, ...], StepOutcome]:
    """What the root's rules lack, and step 13 as far as an envelope shows it."""
    step = steps.REVOCATIONS
    try:
        lists = verified.lists(anchor, trust, at=at)
    except Refused as error:  # of the lists here, and nothing that the envelope could mend
        return (error.what,), StepOutcome.of(step, "notChecked", error.what)
    try:
        if lists is not None:
            check_attestation(lists, attested, at)
            known = replace(trust, revocations=lists)
            known.verify(Attestation, attested_envelope, role="operator", at=at)
    except Refused as error:
        return (), StepOutcome.of(step, "failed", error.what)
    if lacking := stale(trust, lists, at=at):
        return lacking, StepOutcome.of(step, "notChecked", "; ".join(lacking))
    if lists is None or not lists.lists:
        over = [f"passed over: {each}" for each in lists.passed_over] if lists else []
        return (), StepOutcome.of(step, "notChecked", "; ".join(["needs revocation lists", *over]))
    why = "the attestation is not revoked; what the run used needs the model folder"
    return (), StepOutcome.of(step, "notChecked", why)


def _steps(
    attested: Verified[Attestation], revoked: StepOutcome, at: datetime
) -> tuple[StepOutcome, ...]:
    document = attested.document
    done = [
        StepOutcome.of(steps.TRUST_ROOT, "passed"),
        StepOutcome.of(steps.SIGNATURE, "passed", f"by {attested.authority.name}"),
        StepOutcome.of(steps.STATEMENT, "passed"),
        _try(steps.ASSURANCE, lambda: check_assurance(document)),
        revoked,
        _try(
            steps.EXECUTION,
            lambda: check_execution(document, document.execution, at),
        ),
    ]
    return _in_order(done)


def _none(refused: Sequence[tuple[Step, Refused]]) -> tuple[StepOutcome, ...]:
    """No root carries it: tell of the one that came furthest."""
    if not refused:
        why = "there is no trust root to check against"
        return _in_order([StepOutcome.of(steps.TRUST_ROOT, "notChecked", why)])
    furthest, error = max(refused, key=lambda each: each[0].number)
    passed = STEPS[: furthest.number - 1]
    return _in_order(
        [
            *(StepOutcome.of(step, "passed") for step in passed),
            StepOutcome.of(furthest, "failed", error.what),
        ]
    )


def _try(step: Step, check: Callable[[], None]) -> StepOutcome:
    try:
        check()
    except Refused as error:
        return StepOutcome.of(step, "failed", error.what)
    return StepOutcome.of(step, "passed")


def _in_order(done: Sequence[StepOutcome]) -> tuple[StepOutcome, ...]:
    known = {each.number: each for each in done}
    return tuple(known.get(step.number) or _unchecked(step) for step in STEPS)


def _unchecked(step: Step) -> StepOutcome:
    why = f"needs {step.needs}" if step.needs else "a step before it did not pass"
    return StepOutcome.of(step, "notChecked", why)
