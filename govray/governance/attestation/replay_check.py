"""A second party's signed word that running the run again gave the same files.

A model's own attestation claims no more than `selfAttested`. Another party may run every step again
from the recorded inputs. If it gets each model file byte for byte and the same ledger, it may sign
a `ReplayCheck` about that attestation. It lies beside it (``governance/replay-<party>.dsse.json``)
or travels alone, and changes nothing in it. Somebody who trusts the party, by a trust root that
names its key with the role ``witness``, then knows that two keys say so.

It does not establish that a first run read the recorded inputs, or that the data is what it claims
to be. Nor does it establish that the two parties are independent. The party replayed what the run's
storage held.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar, Literal

from govray.errors import Malformed, Refused
from govray.governance.attestation import model_folder
from govray.governance.attestation.environment import Environment
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.formats.bounds import LongText, Positive
from govray.governance.formats.document import Digest, Document, Name, Timestamp, parse_time
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import Signer
from govray.governance.formats.statement import Subject, seal
from govray.governance.trust.trust_state import TrustState, Verified

MAX_CHECKS = 64
"""Statements about one model that are looked at; more are refused."""


class ReplayCheck(Document):
    """The predicate. Its subjects are the model's files and the attestation's statement.

    Attributes:
        party: Who replayed it, by the party's own word; the key decides.
        replayed: When it ended, by the party's clock.
        steps: How many steps ran: all of the plan's, from the first.
        ledger: Merkle root of the replay's ledger.
        outcome: Nothing else is signed.
        differences: In what that differed from the run's; for people.
    """

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/attestation/replay/v1"

    run: Name
    party: Name
    replayed: Timestamp
    steps: Positive
    ledger: Digest
    outcome: Literal["identical"] = "identical"
    environment: Environment
    differences: tuple[LongText, ...]


def subjects_of(attested: Verified[Attestation]) -> tuple[Subject, ...]:
    """What a replay check is about: the attested files and the attestation's statement.

    The statement, and not the envelope's bytes, which change when a further key of the operator
    signs.
    """
    return (*attested.subjects, Subject.of(model_folder.ATTESTATION, attested.digest))


def sign_replay_check(check: ReplayCheck, attested: Verified[Attestation], signer: Signer) -> bytes:
    """The envelope of ``check``. Verify it as others will, before handing it out."""
    return seal(check, subjects_of(attested), [signer])


def verify_replay_check(
    trust: TrustState,
    data: bytes,
    attested: Verified[Attestation],
    file_digest: str,
    *,
    at: datetime,
    where: str,
) -> Verified[ReplayCheck]:
    """A replay check of this very attestation, by a witness other than its signer.

    1. Signed by a threshold of keys of an authority with the role ``witness``, valid at ``at``,
       and by nobody else.
    2. None of these keys belongs to an operator of the trust root, expired or not.
    3. It is about the attestation's statement, or its envelope's own bytes as statements before
       said it, and exactly the files that it covers.
    4. It is about the run, all its steps and its ledger, after the run and before ``at``.
    """
    # 1
    verified = trust.verify(ReplayCheck, data, role="witness", at=at, where=where)
    hints = [signature.keyid or "" for signature in Envelope.parse(data, where=where).signatures]
    if sorted(hints) != sorted(verified.keyids):
        raise Refused(
            "the envelope holds signatures or key hints other than the witness's", where=where
        )
    # 2
    check_second_party(trust, verified.keyids, where=where)
    # 3
    expected = {s.name: s.sha256 for s in subjects_of(attested)}
    stated = {s.name: s.sha256 for s in verified.subjects}
    if stated.get(model_folder.ATTESTATION) == file_digest:
        expected[model_folder.ATTESTATION] = file_digest
    for name in sorted(expected.keys() | stated.keys()):
        if expected.get(name) != stated.get(name):
            raise Refused(
                f"it is about another {name}",
                where=where,
                do="It was made for another model, or before this one was attested again",
            )
    # 4
    check, attestation = verified.document, attested.document
    if check.run != attestation.run.id:
        raise Refused(f"it is about the run {check.run!r}", where=where)
    if check.steps != attestation.steps:
        raise Refused(f"it ran {check.steps} of {attestation.steps} steps again", where=where)
    if check.ledger != attestation.ledger.root:
        raise Refused("the replay's ledger has another root", where=where)
    if check.replayed < attestation.run.finished:
        raise Refused("it was made before the run finished", where=where)
    if parse_time(check.replayed) > at:
        raise Refused(f"it was made at {check.replayed}, after the reference time", where=where)
    return verified


def check_second_party(trust: TrustState, keyids: frozenset[str], *, where: str) -> None:
    """Refuse a witness that is an operator too: whoever runs training is no second party. Raises
    ``Refused``: one of them is a key of an operator, whether its authority has expired or not."""
    operators = {
        key.keyid
        for authority in trust.authorities
        if authority.role == "operator"
        for key in authority.keys
    }
    if keyids & operators:
        raise Refused(
            "a key of an operator signed it: that is no second party",
            where=where,
            do="A witness needs a key of its own, held by somebody else",
        )


def verify_replay_checks(
    trust: TrustState,
    named: Sequence[tuple[str, bytes]],
    attested: Verified[Attestation],
    file_digest: str,
    *,
    at: datetime,
) -> tuple[Verified[ReplayCheck], ...]:
    """Every replay check of a model; none may be out of order.
    ``named``: name (for errors; a name of the folder binds the party) and envelope of each."""
    if len(named) > MAX_CHECKS:
        raise Malformed(f"more than {MAX_CHECKS} replay checks", where=model_folder.GOVERNANCE)
    found = []
    for where, data in named:
        verified = verify_replay_check(trust, data, attested, file_digest, at=at, where=where)
        party = model_folder.replay_party(where)
        if party is not None and party != verified.document.party:
            raise Refused(
                f"it is by {verified.document.party!r}, which is not its file's name", where=where
            )
        found.append(verified)
    return tuple(found)
