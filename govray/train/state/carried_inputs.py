"""A run's inputs from what its newest commit carries: nothing of them is read from elsewhere.

The experiment's policy, credentials and trust root may be gone. The person who resumes gives a
trust root that came by another way than the run. It must be the one under which the run began, and
it decides what the carried bytes are worth. They are verified under it at the time when the run
began, as the inputs of every resumed run are.

What no commit carries has to be where it was: the packed rows, the code, the operator's key. If the
run follows revocation lists, today's are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from govray.data.admission import Prepared
from govray.errors import CouldNotCheck, Refused, UsageError
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.policy.credential import Credential, verify_credential
from govray.governance.policy.depth_policy import Policy, verify_policy
from govray.governance.record.ledger import Leaf, read_leaves
from govray.governance.record.prepare_manifest import Manifest, verify_manifest
from govray.governance.submission.submission import Submission
from govray.governance.trust.revocation_list import Revocations, check_fresh
from govray.governance.trust.trust_state import TrustState, Verified
from govray.storage.place import Place
from govray.train.checkpoint import commit_folder
from govray.train.inputs.recorded_inputs import prepared_folder
from govray.train.inputs.revocation_feed import kept_lists, read_lists
from govray.train.inputs.run_listing import Allowed, refuse_other_code
from govray.train.inputs.run_record import RunRecord, read_record
from govray.train.inputs.shared_inputs import Shared
from govray.train.inputs.verified_inputs import Inputs
from govray.train.run_folder.clock import instant
from govray.train.state.carried_governance import STATE, carried, read_ledger, refuse_other_record
from govray.train.state.snapshot import latest


def carried_inputs(
    run: Place,
    root: bytes,
    revocations: Sequence[Place] = (),
    *,
    submission: Submission | None = None,
    allowed: Allowed = frozenset(),
) -> Shared:
    """The inputs of the run in this folder, verified under a trust root that is not in it.

    Args:
        run: The run's folder, or its copy.
        root: Envelope of the trust root, from elsewhere.
        revocations: Today's lists, if the run follows any; workers read the files again.
        allowed: What may have changed since the run began.

    Raises:
        UsageError: The run follows revocation lists, and none is given.
        CouldNotCheck: Nothing is committed. Or the packed rows are not at hand. Or the root asks
            for a list, or for a newer one.
        Refused: The root differs. Or the carried bytes do not verify under it, or do not
            fit together.
    """
    newest = latest(run)
    if newest is None:
        raise CouldNotCheck(
            "nothing is committed, so nothing is carried",
            where=str(run),
            do="Resume it where its inputs are",
        )
    committed = commit_folder.open_commit(newest[0])
    found = carried(committed)
    found.record()
    for _ in found.contents():  # all of it, before anything starts
        pass
    refuse_other_record(run, found)
    record = read_record(run)
    if _payload(root) != _payload(record.root):
        raise Refused(
            "the run rests on another trust root than the one given",
            where=f"run {record.run_id}",
            do="Give the root under which it began, as its owner has it: not the one in the run",
        )
    refuse_other_code(record, allowed)
    at = record.started
    trust = TrustState.load(root, at=at, delegations=record.delegations)
    policy = verify_policy(trust, record.policy, at=at)
    manifest = verify_manifest(trust.each_key_counts("operator"), record.manifest, at=at)
    _refuse_other_bindings(committed, record, policy, manifest)
    lists, given = _lists(run, trust, revocations)
    return Shared(
        inputs=Inputs(
            trust=trust,
            root_bytes=record.root,
            delegations=record.delegations,
            policy=policy,
            policy_bytes=record.policy,
            credentials={
                corpus: _credential(trust, corpus, data, record)
                for corpus, data in record.credentials.items()
            },
            credential_bytes=dict(record.credentials),
            revocation_paths=tuple(str(path.resolve()) for path in revocations),
            revocation_bytes=given,
            revocations=lists,
        ),
        prepared=Prepared(prepared_folder(run, record), record.manifest),
        at=at,
        selection=record.selection,
        submission=submission,
        carried=record,
    )


def _lists(
    run: Place, trust: TrustState, paths: Sequence[Place]
) -> tuple[Revocations | None, tuple[bytes, ...]]:
    """Today's lists, which extend those that the run accepted; and their bytes."""
    given, today = read_lists(paths), instant()
    before = kept_lists(run, trust, at=today)
    if before is not None and not given:
        raise UsageError(
            "the run follows revocation lists, and none is given",
            where=str(run),
            do="Give today's with --revocations",
        )
    lists = Revocations.load(trust, given, at=today, previous=before) if given else None
    check_fresh(trust, lists, at=today)
    return lists, given


def _credential(
    trust: TrustState, corpus: str, data: bytes, record: RunRecord
) -> Verified[Credential]:
    credential = verify_credential(trust, data, at=record.started)
    if credential.document.corpus != corpus:
        raise Refused(
            f"the credential is for corpus {credential.document.corpus!r}",
            where=f"run {record.run_id}, corpus {corpus}",
            do="Copy the checkpoint once more from where it was written",
        )
    return credential


def _refuse_other_bindings(
    committed: commit_folder.CommitFolder,
    record: RunRecord,
    policy: Verified[Policy],
    manifest: Verified[Manifest],
) -> None:
    """Refuse what is validly signed and none of the run's: its state and every step name theirs."""
    plan = record.plan.digest
    state: Any = canonical_json.parse_canonical(committed.files[STATE])
    bound = {"policy": policy.digest, "plan": plan, "manifest": manifest.digest}
    odd = [name for name, digest in bound.items() if state.get(name) != digest]
    odd += ["manifest"] if record.plan.manifest != manifest.digest else []
    for leaf in read_leaves(read_ledger(committed)):
        if isinstance(leaf, Leaf):
            odd += ["policy"] if leaf.policy != policy.digest else []
            odd += ["plan"] if leaf.plan != plan else []
    if odd:
        raise Refused(
            f"the checkpoint was made under another {odd[0]} than the one that it carries",
            where=str(committed.folder),
            do="Copy the checkpoint once more from where it was written",
        )


def _payload(envelope: bytes) -> bytes:
    return Envelope.parse(envelope).payload
