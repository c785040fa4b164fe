"""What a replay of a run gave, signed by who ran it.

An operator's attestation states level 2 for a corpus if a rerun without it gave the same bytes.
That rests on such an outcome. Many may write to the replay's storage, so an unsigned note there
shows nothing. This document binds party, run, left-out corpus, plan, environment and the digests of
both runs' files.

Who ran it is decided by the key alone: an operator of the trust root, or a witness. The name in
the document must be that authority's own. A witness's outcome travels in the model folder
(``governance/replays.jsonl``), so that anybody can check whose word it is. An operator's need not:
the attestation, which the operator signs, says the same.

What it does not establish: that the recorded inputs were those of a first run.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from govray.errors import Malformed, Refused, Untrusted
from govray.governance.attestation.environment import Environment
from govray.governance.attestation.replay_check import check_second_party
from govray.governance.formats.bounds import LongText, Natural, Positive
from govray.governance.formats.document import Digest, Name, Timestamp, parse_time
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import PublicKey
from govray.governance.formats.statement import Signed, read
from govray.governance.trust.authority import Authority, Role
from govray.governance.trust.trust_state import TrustState, Verified, check_subjects

_Files = Annotated[dict[LongText, Digest], Field(max_length=10_000)]

_ROLES: tuple[Role, ...] = ("operator", "witness")


class ReplayOutcome(Signed):
    """The predicate. Its subject is itself.

    Attributes:
        party: Name of the authority whose key signs.
        without: The corpus that was left out, if one was.
        start, stop: Steps ``start … stop-1`` ran again.
        max_steps: Steps of the whole run.
        plan: Digest of the replay's plan, in which ``without`` is a tombstone.
        identical: Absent if the last step's weights could not be compared.
        original, replayed: File to digest, after the last compared step of each run.
        finished: When the replay ended, by the signer's clock.
        differences: In what that differs from where the run ran; for people.
    """

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/replay-outcome/v1"
    NAMED_BY: ClassVar[str] = "replay"

    run: Name
    replay: Name
    party: Name
    without: Name | None = None
    start: Natural
    stop: Positive
    max_steps: Positive
    plan: Digest
    identical: bool | None = None
    original: _Files
    replayed: _Files
    finished: Timestamp
    environment: Environment
    differences: tuple[LongText, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.start < self.stop <= self.max_steps:
            raise ValueError("the steps are not of the plan")
        if self.identical and (not self.original or self.original != self.replayed):
            raise ValueError("identical, but the digests differ or are missing")
        return self

    @property
    def whole(self) -> bool:
        """Whether every step of the plan ran, and the last step's weights were compared."""
        return (self.start, self.stop) == (0, self.max_steps) and self.identical is not None


def party_of(trust: TrustState, key: PublicKey) -> Authority:
    """The operator or witness of the trust root that may sign an outcome with ``key``."""
    for role in _ROLES:
        for authority in trust.authorities:
            if authority.role == role and key in authority.keys:
                return authority
    raise Untrusted(
        f"the key {key.keyid[:12]}… belongs to no operator and no witness of the trust root",
        where="--key",
        do="Use the operator's key, or have the root's owner name the key with the role witness",
    )


def verify_outcome(
    trust: TrustState,
    data: bytes,
    *,
    at: datetime | None = None,
    roles: Sequence[Role] = _ROLES,
    where: str,
) -> tuple[Verified[ReplayOutcome], Role]:
    """The outcome in ``data`` and the role in which its party signed it.

    1. Signed by a key of an operator, or by a threshold of keys of a witness, which had not
       expired at ``at``. Each key of an operator may run a replay; what the operator makes of it,
       the attestation, needs the threshold.
    2. The party that it names is that authority.
    3. It is about itself, and was not made after ``at``.
    4. A witness's keys are no operator's.

    Args:
        at: Reference time; when the replay ended, by its own word, if None.

    Raises:
        Untrusted: The first of the numbered conditions that does not hold.
        Refused: The fourth.
    """
    if at is None:
        at = parse_time(read(ReplayOutcome, Envelope.parse(data, where=where)).document.finished)
    # 1
    verified, role = _by_role(trust.each_key_counts("operator"), data, roles, at, where)
    outcome = verified.document
    # 2
    if outcome.party not in {authority.name for authority in verified.authorities}:
        raise Untrusted(
            f"it names {outcome.party!r} as the party, but {verified.authority.name} signed it",
            where=where,
            do="A second party's name counts only with a witness's signature",
        )
    # 3
    check_subjects(verified, where=where)
    if parse_time(outcome.finished) > at:
        raise Untrusted(f"made at {outcome.finished}, after the reference time", where=where)
    # 4
    if role == "witness":
        check_second_party(trust, verified.keyids, where=where)
    return verified, role


def _by_role(
    trust: TrustState, data: bytes, roles: Sequence[Role], at: datetime, where: str
) -> tuple[Verified[ReplayOutcome], Role]:
    refused: list[Refused] = []
    for role in roles:
        try:
            return trust.verify(ReplayOutcome, data, role=role, at=at, where=where), role
        except Malformed:
            raise
        except Refused as error:
            refused.append(error)
    # Of a stranger's signature the last role says as much as the first.
    raise refused[-1]
