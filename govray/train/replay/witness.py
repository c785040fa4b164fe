"""A second party's replay: what must hold before it starts, and before it signs.

The party verifies the model under its own trust root and runs every step again from the run's
storage. It signs only if the replay gave each attested file and the attested ledger. The signed
statement is read back with the reader that others use.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from govray.errors import Refused, Untrusted, UsageError
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.attestation.replay_check import (
    ReplayCheck,
    check_second_party,
    sign_replay_check,
    verify_replay_check,
)
from govray.governance.formats import canonical_json
from govray.governance.formats.document import format_time
from govray.governance.formats.keys import PublicKey, Signer
from govray.governance.record.ledger import Ledger
from govray.governance.record.prepare_manifest import verify_manifest
from govray.governance.trust.trust_state import Verified
from govray.governance.verify.verifier import VerifiedModel
from govray.train.attest.write_model import model_digests
from govray.train.checkpoint import commit_folder
from govray.train.inputs.run_record import RunRecord, read_record
from govray.train.replay.replay_outcome import ReplayFinding
from govray.train.replay.replayed_run import commits
from govray.train.state.carried_governance import read_ledger


def require_witness(model: VerifiedModel, run: RunRecord, key: PublicKey, *, at: datetime) -> None:
    """Refuse a replay that this key could not sign.
    ``model``: verified under the party's trust root."""
    if model.attestation.run.id != run.run_id:
        raise UsageError(
            f"the model is of run {model.attestation.run.id}, not of {run.run_id}",
            where=str(model.path),
            do="Replay the run that the model comes from",
        )
    check_second_party(model.trust_root, frozenset({key.keyid}), where="--key")
    witnesses = [each for each in model.trust_root.authorities if each.role == "witness"]
    if not any(key in authority.keys for authority in witnesses):
        raise Untrusted(
            f"the key {key.keyid[:12]}… belongs to no witness of the trust root",
            where="--key",
            do=f"Use the key of {', '.join(a.name for a in witnesses)}"
            if witnesses
            else "Have the root's owner name the key with the role witness",
        )


def sign_replay(
    model: VerifiedModel,
    replayed: Path,
    outcome: ReplayFinding,
    *,
    signer: Signer,
    party: str,
    at: datetime,
) -> bytes:
    """The party's envelope about a replay that gave the same.

    Args:
        model: Verified under the party's trust root.

    Raises:
        Refused: The replay was not whole and identical, or its files or ledger differ from those
            attested. Or the statement would not be accepted.
    """
    if not (outcome.whole and outcome.identical) or outcome.without is not None:
        raise Refused("only a whole, identical replay can be signed", where=f"run {outcome.of}")
    attested, file_digest = _attested(model, at)
    record = read_record(replayed)
    committed = commit_folder.open_commit(commits(replayed)[outcome.stop])
    # The run's own copy lacks later cosignatures; the model's files decide.
    own = model.trust_root.each_key_counts("operator")
    manifest = verify_manifest(own, record.manifest, at=at)
    made = model_digests(record, committed, manifest.document)
    for subject in model.subjects:
        if made.get(subject.name) != subject.sha256:
            raise Refused(
                f"the replay gave another {subject.name} than the one attested",
                where=str(model.path),
                do="The run's storage is not what the attestation was made from",
            )
    root = Ledger.read(record.run_id, read_ledger(committed)).root
    check = ReplayCheck(
        run=outcome.of,
        party=party,
        replayed=format_time(at),
        steps=outcome.stop,
        ledger="sha256:" + root.hex(),
        environment=outcome.environment,
        differences=outcome.differences,
    )
    envelope = sign_replay_check(check, attested, signer)
    verify_replay_check(
        model.trust_root,
        envelope,
        attested,
        file_digest,
        at=at,
        where=model_folder.replay_file(party),
    )
    return envelope


def _attested(model: VerifiedModel, at: datetime) -> tuple[Verified[Attestation], str]:
    """The verified attestation, with its authorities and its file's digest."""
    data = (model.path / model_folder.ATTESTATION).read_bytes()
    attested = model.trust_root.verify(Attestation, data, role="operator", at=at)
    if attested.digest != model.digest:
        raise Refused("the attestation changed while it was read", where=str(model.path))
    return attested, canonical_json.sha256(data)
