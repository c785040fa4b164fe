"""What a replay found, as its folder and an attestation state it.

A replay's folder has it twice. ``outcome.json`` is for people and is no evidence: whoever can write
there can write it. ``outcome.dsse.json`` is signed by whoever ran the replay
(`govray.governance.attestation.replay_outcome`). Only that becomes evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from govray.errors import CouldNotCheck, Refused, UsageError
from govray.governance.attestation import model_attestation
from govray.governance.attestation.environment import Environment
from govray.governance.attestation.replay_outcome import (
    ReplayOutcome,
    party_of,
    verify_outcome,
)
from govray.governance.formats import canonical_json
from govray.governance.formats.document import format_time, parse_time
from govray.governance.formats.keys import Signer
from govray.governance.trust.trust_state import TrustState
from govray.storage.atomic_file import write_whole
from govray.storage.place import Place
from govray.train.attest.write_model import final_digests
from govray.train.inputs.run_record import RunRecord, read_record
from govray.train.replay.comparison import LeafDifference, TensorDifference

FOLDER = "replays"
"""Folder in a run's folder for its replays, each a run folder itself."""

FILE = "outcome.json"
SIGNED = "outcome.dsse.json"


@dataclass(frozen=True, kw_only=True)
class ReplayFinding:
    """What a replay found.

    Attributes:
        of: The run that was replayed.
        run: The replay's own run.
        without: The corpus that was left out, if one was.
        start, stop: Steps ``start … stop-1`` ran, from a state that both have.
        checkpoints: Steps whose commits were compared; if none, only leaves were.
        original, replayed: File to digest, in the last compared commits.
        environment: Where the replay ran: rank 0's, from its last commit.
        differences: How that environment differs from the run's; for people.
    """

    of: str
    run: str
    without: str | None
    start: int
    stop: int
    max_steps: int
    plan: str
    checkpoints: tuple[int, ...]
    leaf: LeafDifference | None
    tensor: TensorDifference | None
    original: dict[str, str]
    replayed: dict[str, str]
    environment: Environment
    differences: tuple[str, ...]

    @property
    def identical(self) -> bool | None:
        """None if leaves are equal and the weights after the last step could not be compared."""
        if self.leaf or self.tensor:
            return False
        return True if self.stop in self.checkpoints else None

    @property
    def whole(self) -> bool:
        """Whether every step of the plan ran, and the final state was compared."""
        return (self.start, self.stop) == (0, self.max_steps) and self.stop in self.checkpoints

    def to_json(self) -> dict[str, Any]:
        """Absent fields are left out; ``identical`` is always there, ``null`` if not known."""
        value = _present(vars(self)) | {"environment": self.environment.to_json()}
        for key in ("leaf", "tensor"):
            if key in value:
                value[key] = _present(asdict(value[key]))
        return {"identical": self.identical} | value

    def write(self, folder: Path) -> None:
        """Write the outcome into the replay's folder, for people."""
        write_whole(folder / FILE, canonical_json.encode(self.to_json()))

    def sign(self, folder: Path, signer: Signer, trust: TrustState, *, at: datetime) -> Path:
        """Write the signed outcome into the replay's folder, and return where.
        ``trust``: names the key as an operator's or a witness's."""
        document = ReplayOutcome(
            run=self.of,
            replay=self.run,
            party=party_of(trust, signer.public_key).name,
            without=self.without,
            start=self.start,
            stop=self.stop,
            max_steps=self.max_steps,
            plan=self.plan,
            identical=self.identical,
            original=self.original,
            replayed=self.replayed,
            finished=format_time(at),
            environment=self.environment,
            differences=self.differences,
        )
        write_whole(folder / SIGNED, document.seal([signer]))
        return folder / SIGNED


@dataclass(frozen=True)
class ReplayEvidence:
    """A replay as an attestation states it, and the envelope that goes with the model.
    ``envelope``: a second party's signed outcome; None for the operator's own."""

    replay: model_attestation.Replay
    envelope: bytes | None


def evidence(
    run: Place,
    *,
    at: datetime,
    trust_root: bytes | None = None,
    given: Sequence[Path] = (),
) -> tuple[ReplayEvidence, ...]:
    """The identical whole replays of a run without a corpus, by whoever signed them.

    Of each party's replays without a corpus the newest counts. If one party's differs, there is no
    evidence for that corpus. Unsigned outcomes are ignored.

    Args:
        trust_root: Names operators and witnesses; the run's own root by default.
        given: Signed outcomes from outside the folder.

    Raises:
        Refused: An outcome's signer is not in the trust root. Or it is of another run or plan, or
            of weights other than the run's last commit.
    """
    record = read_record(run)
    root = record.root if trust_root is None else trust_root
    moment = record.started if trust_root is None else at
    trust = TrustState.load(root, at=moment, delegations=record.delegations)
    newest: dict[tuple[str, str], tuple[ReplayOutcome, str, bytes | None]] = {}
    for path in (*_outcomes(run, SIGNED), *given):
        data = _bytes(path)
        verified, role = verify_outcome(trust, data, where=str(path))
        found = verified.document
        _check_of_run(found, record, at, where=str(path))
        if found.whole and found.without is not None:
            if record.earlier:
                raise Refused(
                    f"the run went on under other code at step {record.earlier[0].step}, and a "
                    "replay of all its steps is of one code",
                    where=str(path),
                    do="Leave the outcome out; begin a new run for evidence of level 2",
                )
            place = (found.without, found.party)
            if place not in newest or newest[place][0].finished <= found.finished:
                held = data if role == "witness" else None
                newest[place] = (found, verified.digest, held)
    different = {corpus for (corpus, _), (found, *_) in newest.items() if not found.identical}
    kept = {place: each for place, each in newest.items() if place[0] not in different}
    return tuple(_evidence(run, record, kept.values()))


def unsigned(run: Place) -> tuple[Place, ...]:
    """The unsigned outcomes in a run's folder."""
    return tuple(path for path in _outcomes(run, FILE) if not path.with_name(SIGNED).exists())


def _outcomes(run: Place, name: str) -> list[Place]:
    found: Iterable[Place] = (run / FOLDER).glob(f"*/{name}")
    return sorted(found, key=str)


def _evidence(
    run: Place, record: RunRecord, kept: Iterable[tuple[ReplayOutcome, str, bytes | None]]
) -> list[ReplayEvidence]:
    made: dict[str, str] = {}
    evidence = []
    for found, digest, envelope in kept:
        made = made or final_digests(run, record)
        for name, original in found.original.items():
            if made.get(name) != original:
                raise Refused(
                    f"the replay compared another {name} than the run's last commit holds",
                    where=f"replay {found.replay}",
                    do="Replay the run again: its storage is not what was replayed",
                )
        replay = model_attestation.Replay(
            corpus=str(found.without),
            party=found.party,
            plan=found.plan,
            files=found.replayed,
            environment=found.environment,
            outcome=digest if envelope else None,
        )
        evidence.append(ReplayEvidence(replay, envelope))
    return evidence


def _check_of_run(outcome: ReplayOutcome, record: RunRecord, at: datetime, *, where: str) -> None:
    plan = record.plan
    if outcome.run != record.run_id:
        raise Refused(f"the outcome is of run {outcome.run}, not of {record.run_id}", where=where)
    expected = plan.without(outcome.without) if outcome.without else plan
    if outcome.plan != expected.digest or outcome.max_steps != record.steps:
        raise Refused("the outcome is of another plan", where=where)
    if record.finished is None:
        raise CouldNotCheck("the run has not ended", where=record.run_id, do="Resume it first")
    if not record.finished <= parse_time(outcome.finished) <= at:
        raise Refused(
            f"made at {outcome.finished}, which is before the run ended or after now", where=where
        )


def _bytes(path: Place) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(canonical_json.MAX_BYTES + 1)  # its reader refuses one byte more
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _present(value: dict[str, Any]) -> dict[str, Any]:
    return {key: found for key, found in value.items() if found is not None}
