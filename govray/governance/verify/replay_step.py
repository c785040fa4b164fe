"""Of the verifier's eleventh step: the replays that an attestation states, and by whom they are.

Each follows the run's plan without its corpus and compared the attested files. The keys decide
whose replay it is, not the text. It is the operator's that signed the attestation, unless a
witness's own signed outcome (`govray.governance.attestation.replay_outcome`) in the folder agrees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from govray.errors import Refused, Untrusted
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation, Replay
from govray.governance.attestation.model_folder import Bundle
from govray.governance.attestation.replay_outcome import ReplayOutcome, verify_outcome
from govray.governance.trust.trust_state import TrustState, Verified


@dataclass(frozen=True, order=True)
class Replayer:
    """Who says that a replay gave the same: the operator itself, or a witness."""

    party: str
    is_operator: bool

    def __str__(self) -> str:
        return f"{self.party} itself" if self.is_operator else self.party


def check_replays(
    folder: Bundle, trust: TrustState, attested: Verified[Attestation], *, at: datetime
) -> dict[str, tuple[Replayer, ...]]:
    """The replays of an attestation; returns corpus → who ran them.

    Raises:
        Refused: One is of another run, plan or model, or names a second party without a witness's
            signature. Or an outcome in the folder belongs to none of them.
    """
    attestation = attested.document
    subjects = {s.name: s.sha256 for s in attested.subjects}
    removed = {file for r in attestation.removals for file in model_folder.adapter_files(r.adapter)}
    outcomes = _outcomes(folder, trust, attestation, at)
    named: set[str] = set()
    by: dict[str, set[Replayer]] = {}
    for replay in attestation.replays:
        where = f"replay without {replay.corpus}"
        if replay.corpus not in attestation.plan.corpora:
            raise Refused("the run read no such corpus", where=where)
        if replay.plan != attestation.plan.without(replay.corpus).digest:
            raise Refused("it followed another plan", where=where)
        for name, digest in replay.files.items():
            if name not in removed and subjects.get(name) != digest:
                raise Refused(f"it compared another {name}", where=where)
        if model_folder.EMA in subjects and replay.files.keys() & {
            model_folder.WEIGHTS,
            model_folder.EMA,
        } == {model_folder.WEIGHTS}:
            raise Refused("it compared the weights, and not their average", where=where)
        if replay.outcome is None:
            replayer = Replayer(attested.authority.name, is_operator=True)
        else:
            found = outcomes.get(replay.outcome)
            if found is None:
                raise Refused("the second party's signed outcome is not here", where=where)
            _check_same(found.document, replay, attestation, where)
            replayer = Replayer(found.document.party, is_operator=False)
            named.add(replay.outcome)
        by.setdefault(replay.corpus, set()).add(replayer)
    if outcomes.keys() - named:
        raise Refused("an outcome that the attestation does not name", where=model_folder.REPLAYS)
    return {corpus: tuple(sorted(who, key=_order)) for corpus, who in by.items()}


def _order(replayer: Replayer) -> tuple[bool, str]:
    return replayer.is_operator, replayer.party


def _outcomes(
    folder: Bundle, trust: TrustState, attestation: Attestation, at: datetime
) -> Mapping[str, Verified[ReplayOutcome]]:
    """Digest → outcome, of the witnesses' that the folder holds."""
    digest = attestation.files.get(model_folder.REPLAYS)
    if digest is None:
        return {}
    found: dict[str, Verified[ReplayOutcome]] = {}
    for line in folder.lines(model_folder.REPLAYS, limit=model_folder.MAX_ENVELOPE, digest=digest):
        verified = _of_witness(trust, line, at)
        if verified.digest in found:
            raise Refused("an outcome stands there twice", where=model_folder.REPLAYS)
        found[verified.digest] = verified
    return found


def _of_witness(trust: TrustState, line: bytes, at: datetime) -> Verified[ReplayOutcome]:
    try:
        verified, _ = verify_outcome(
            trust, line, at=at, roles=("witness",), where=model_folder.REPLAYS
        )
    except Untrusted as error:
        try:
            trust.verify(ReplayOutcome, line, role="witness", at=at)
        except Untrusted:
            # The file is the attested one, so nothing that its reader gets anew would mend it.
            raise Untrusted(
                f"{error.what}: the operator attested this outcome, and your trust root does not "
                "count its witness at this time",
                where=model_folder.REPLAYS,
                do="The root's owner can name the witness in a new version, or the operator can "
                "attest a replay by a current one. Until then, --at a time when the witness "
                "counted shows what held then",
            ) from None
        raise
    return verified


def _check_same(
    outcome: ReplayOutcome, replay: Replay, attestation: Attestation, where: str
) -> None:
    """What the witness signed is what the attestation states."""
    if not (outcome.whole and outcome.identical):
        raise Refused("the second party's replay was not whole and identical", where=where)
    stated = {
        "run": attestation.run.id,
        "without": replay.corpus,
        "party": replay.party,
        "plan": replay.plan,
        "max_steps": attestation.steps,
        "replayed": replay.files,
        "environment": replay.environment,
    }
    for name, value in stated.items():
        if getattr(outcome, name) != value:
            raise Refused(f"the second party signed another {name.replace('_', ' ')}", where=where)
    if outcome.finished < attestation.run.finished:
        raise Refused("the second party's replay ended before the run did", where=where)
