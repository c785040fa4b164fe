"""From a finished run to a model folder that anyone can verify alone.

Everything comes from the run's folder: the last committed checkpoint, the record of what was
verified, and the replays since. So a model can be attested again without training, for instance
after a replay. `unsigned` reads it, with neither key nor torch. `write_model` is for whoever runs
by hand: it reads and signs in one process, and takes the execution from the run's folder too.

Weights and adapters are copied, not linked: a checkpoint never changes, and a model folder is given
away. Their digests were computed while the checkpoint was written. So what is attested is what the
run wrote. If the storage changed a byte since, `verify` finds it, for it hashes every byte. Weights
in parts are joined and hashed in one pass (`govray.train.checkpoint.whole_file`). The same pass
compares each part with its digest.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from govray.data.records_file import open_records
from govray.errors import CouldNotCheck, Malformed, Refused
from govray.governance.attestation import model_folder
from govray.governance.attestation.environment import Environment
from govray.governance.attestation.execution import CodeFacts, Execution
from govray.governance.attestation.model_attestation import (
    Claims,
    LayerGroup,
    Reference,
    Replay,
    RunFacts,
    build,
)
from govray.governance.attestation.selection_taint import Selection, selecting_corpora
from govray.governance.attestation.signing import UnsignedModel, sign_head
from govray.governance.attestation.validation_result import ValidationResult
from govray.governance.formats import canonical_json
from govray.governance.formats.document import format_time
from govray.governance.formats.keys import Signer
from govray.governance.formats.tensor_header import read_header
from govray.governance.policy.credential import verify_credential
from govray.governance.policy.depth_policy import verify_policy
from govray.governance.record.ledger import Ledger
from govray.governance.record.prepare_manifest import Manifest, verify_manifest
from govray.governance.record.prepared_records import PreparedRecords
from govray.governance.trust.trust_state import TrustState, Verified
from govray.storage.place import Place
from govray.storage.staged_folder import staged_folder, uploaded_folder
from govray.train.checkpoint import commit_folder, whole_file
from govray.train.checkpoint.holds import check_not_held
from govray.train.checkpoint.storage import latest
from govray.train.inputs.gating import GATES
from govray.train.inputs.recorded_inputs import prepared_folder
from govray.train.inputs.run_listing import earlier_code
from govray.train.inputs.run_record import (
    LOADER_FILES,
    RECORD,
    RunRecord,
    read_record,
)
from govray.train.run_folder import events as run_events
from govray.train.run_folder.clock import instant
from govray.train.state.carried_governance import carried, read_ledger, refuse_other_record
from govray.train.validation.best_so_far import BestSoFar


def write_model(
    run: Place,
    signer: Signer,
    replays: Sequence[Replay] = (),
    *,
    outcomes: Sequence[bytes] = (),
    stopped: datetime | None = None,
) -> Place:
    """Write ``run/model``: weights, adapters, what loads them, and the signed governance folder.

    Args:
        replays, outcomes, stopped: As of `unsigned`.

    Returns:
        The model folder. An earlier one is replaced only once the new one is whole.

    Raises:
        CouldNotCheck, Refused: As `unsigned`.
    """
    with _model_folder(run) as folder:
        found = unsigned(run, folder, replays, outcomes=outcomes, stopped=stopped)
        headed = sign_head(found, by_hand(run, found, at=instant()), signer)
        for name, content in headed.signed([signer]).items():
            _put(folder / name, content)
    return run / model_folder.MODEL


def unsigned(
    run: Place,
    folder: Path,
    replays: Sequence[Replay] = (),
    *,
    outcomes: Sequence[bytes] = (),
    stopped: datetime | None = None,
    prepared: Sequence[Place] | None = None,
) -> UnsignedModel:
    """Fill ``folder`` with a run's model, but for the two files that need the key.

    Args:
        replays: Evidence for level 2.
        outcomes: Second parties' signed outcomes that the replays name; copied to the model.
        stopped: When the run ended for good, if that was before its last step: its newest commit
            is the model.
        prepared: The folders among which its data are, if not where a run has them.

    Returns:
        What is to be signed: what the run's folder says, and nothing from elsewhere.

    Raises:
        CouldNotCheck: The run has no whole checkpoint of its last step, or its prepared data is
            not in its storage.
        Refused: What the run recorded about itself does not verify, or is not what its last
            commit carries.
    """
    record = read_record(run)
    if stopped is not None:
        record = replace(record, finished=stopped)
    committed = final_checkpoint(run, record, early=stopped is not None)
    refuse_other_record(run, carried(committed))
    record = replace(record, earlier=earlier_code(record.earlier, run_events.read(run)))
    trust = TrustState.load(record.root, at=record.started, delegations=record.delegations)
    own = trust.each_key_counts("operator")  # other keys may sign later
    manifest = verify_manifest(own, record.manifest, at=record.started)
    ledger = Ledger.read(record.run_id, read_ledger(committed))
    _refuse_other_steps(run, ledger)
    governance = {
        model_folder.POLICY: record.policy,
        model_folder.MANIFEST: record.manifest,
        model_folder.CREDENTIALS: _lines(
            record.credentials[corpus] for corpus in record.plan.corpora
        ),
        model_folder.DELEGATIONS: _lines(record.delegations),
        model_folder.LEDGER: ledger.data,
    }
    if GATES in committed.files:
        governance[model_folder.GATES] = committed.files[GATES]
    if outcomes:
        governance[model_folder.REPLAYS] = _lines(outcomes)
    records = open_records(prepared_folder(run, record, prepared), manifest.document)
    claims = _claims(record, committed, trust, manifest, records, ledger, governance, replays)
    config = _config(record, manifest.document)
    subjects = {model_folder.CONFIG: _put(folder / model_folder.CONFIG, config)}
    for name, data in loader_files(record.loader_files).items():
        subjects[name] = _put(folder / name, data)
    for name in model_tensors(committed):
        subjects[name] = whole_file.copy(committed, name, _place(folder / name)).digest
    for name, content in governance.items():
        _put(folder / name, content)
    return UnsignedModel(claims=claims, subjects=subjects, commit=committed.digest)


def by_hand(run: Place, found: UnsignedModel, *, at: datetime) -> Execution:
    """The execution of a run that the operator started, as its folder has it.

    Nobody but the operator accepted it, so it is registered when it starts. Its code counts as
    submitted, and its cluster as shared unless each of its drivers started one for itself.
    """
    record, events = read_record(run), run_events.read(run)
    by = record.submission
    drivers = [each for each in events if isinstance(each, run_events.DriverStarted)]
    attempts = sum(isinstance(each, run_events.AttemptStarted) for each in events)
    return Execution(
        submission=by.id if by else None,
        user=by.user if by else None,
        project=by.project if by else None,
        policy=by.policy if by else None,
        submitted=by.submitted if by else None,
        code=CodeFacts(
            origin="submitted",
            archive=record.code_archive,
            setup=found.claims.environment.setup,
        ),
        isolation="machine" if drivers and all(each.alone for each in drivers) else "sharedCluster",
        attempts=max(1, attempts),
        commit=found.commit,
        registered=found.claims.run.started,
        attested=format_time(at),
    )


def signed_files(run: Place) -> dict[str, bytes]:
    """The attestation of a run's model and its policy, by file name."""
    names = (model_folder.ATTESTATION, model_folder.POLICY)
    return {
        (run / model_folder.MODEL / each).name: (run / model_folder.MODEL / each).read_bytes()
        for each in names
    }


def _model_folder(run: Place) -> AbstractContextManager[Path]:
    """The folder to fill, which then is the run's model."""
    if (run / model_folder.MODEL).exists():
        check_not_held(run, "the model")
    if isinstance(run, Path):
        return staged_folder(run / model_folder.MODEL, replace=True)
    return uploaded_folder(run / model_folder.MODEL, last=model_folder.ATTESTATION)


def final_checkpoint(
    run: Place, record: RunRecord, *, early: bool = False
) -> commit_folder.CommitFolder:
    """The committed state after the run's last step; its files are checked as they are read.
    ``early``: take the newest state, whatever its step."""
    found = latest(run)
    if found is None or (found[1] != record.steps and not early):
        raise CouldNotCheck(
            "the run has no whole checkpoint of its last step",
            where=str(run),
            do="Let the run end first",
        )
    return commit_folder.open_commit(found[0])


def _refuse_other_steps(run: Place, ledger: Ledger) -> None:
    """Refuse a ledger that lacks steps of the newest checkpoint, or has more: its totals would say
    less of the weights than they hold."""
    _, step = latest(run) or (None, 0)
    done = ledger.steps[-1].step + 1 if ledger.steps else 0
    if done != step:
        raise Refused(
            f"its ledger ends with step {done}, and its checkpoint with step {step}",
            where=str(run),
        )


def environment(committed: commit_folder.CommitFolder) -> Environment:
    """Where the run ran, as rank 0 recorded it in a commit."""
    state: Any = canonical_json.parse_canonical(committed.files["state.json"])
    return Environment.from_json(state["environment"], where="state.json")


def model_digests(
    record: RunRecord, committed: commit_folder.CommitFolder, manifest: Manifest
) -> dict[str, str]:
    """The digests of the files that a model consists of, by name."""
    tensors = {name: whole_file.entry(committed, name).digest for name in model_tensors(committed)}
    texts = {model_folder.CONFIG: _config(record, manifest), **loader_files(record.loader_files)}
    return {name: canonical_json.sha256(data) for name, data in texts.items()} | tensors


def final_digests(run: Place, record: RunRecord) -> dict[str, str]:
    """The digests of the weights and adapters in the run's last commit, by file name."""
    committed = final_checkpoint(run, record)
    return {name: whole_file.entry(committed, name).digest for name in model_tensors(committed)}


def model_tensors(committed: commit_folder.CommitFolder) -> list[str]:
    """The files of a commit that belong to a model: weights, their average, and adapters."""
    return sorted(
        name
        for name in committed.names
        if name in (model_folder.WEIGHTS, model_folder.EMA)
        or name.startswith(f"{model_folder.ADAPTERS}/")
    )


def loader_files(recorded: bytes) -> dict[str, bytes]:
    """What other libraries load a model by, as its run recorded it. A submitter may have written
    that."""
    where = f"{RECORD}/{LOADER_FILES}"
    files: Any = canonical_json.parse_canonical(recorded, where=where)
    try:
        found = {name: b64decode(data, validate=True) for name, data in files.items()}
    except (AttributeError, TypeError, ValueError):
        raise Malformed("it is no mapping of names to base64", where=where) from None
    if others := sorted(found.keys() - {*model_folder.LOADER_FILES}):
        raise Refused(f"no model folder has a file {others[0]!r} for loaders", where=where)
    return found


def _config(record: RunRecord, manifest: Manifest) -> bytes:
    config: dict[str, Any] = {
        "context": record.plan.context,
        "tokenizer": manifest.tokenizer.to_json(),
    }
    if manifest.rows is not None:
        config["rows"] = manifest.rows.to_json()
    if record.experiment:
        config["entrypoint"] = record.experiment.entrypoint
        if record.experiment.framework != "torch":
            config["framework"] = record.experiment.framework
        config["hyperparameters"] = record.config["hyperparameters"]
    else:
        config["trainLoopConfig"] = dict(record.config)
    if record.ema:
        config["ema"] = record.ema.model_dump(mode="json")
    return canonical_json.encode(config)


def _claims(
    record: RunRecord,
    committed: commit_folder.CommitFolder,
    trust: TrustState,
    manifest: Verified[Manifest],
    records: PreparedRecords,
    ledger: Ledger,
    governance: Mapping[str, bytes],
    replays: Sequence[Replay],
) -> Claims:
    at, start = record.started, record.start
    updated = {fqn for fqns in record.groups.values() for fqn in fqns}
    adapters = {
        name.split("/")[1]: tuple(sorted(_tensor_names(committed, name)))
        for name in committed.entries
        if name.endswith(model_folder.ADAPTER_WEIGHTS)
    }
    return build(
        run=RunFacts(
            id=record.run_id,
            name=record.experiment.name if record.experiment else record.run_id,
            started=format_time(record.started),
            finished=format_time(_finished(record)),
            initial_weights=dict(start.files) if start else None,
            initial_optimizer=start.optimizer.commit if start and start.optimizer else None,
            ancestry=record.ancestry or None,
            earlier_code=record.earlier or None,
        ),
        policy=verify_policy(trust, record.policy, at=at),
        trust_root=Reference(name=trust.root.name, version=trust.root.version, digest=trust.digest),
        manifest=manifest,
        records=records,
        plan=record.plan,
        credentials={
            corpus: verify_credential(trust, record.credentials[corpus], at=at)
            for corpus in record.plan.corpora
        },
        groups=[LayerGroup(group=group, parameters=fqns) for group, fqns in record.groups.items()],
        ledger=ledger,
        adapter_tensors=adapters,
        environment=environment(committed),
        # The operator's keys sign the manifest one after another, so its payload's digest is
        # pinned.
        files={name: canonical_json.sha256(data) for name, data in governance.items()}
        | {model_folder.MANIFEST: manifest.digest},
        buffers=sorted(_tensor_names(committed, model_folder.WEIGHTS) - updated),
        pretrained=start.taint if start else None,
        replays=replays,
        selections=_selections(record),
        validation=_validated(record, committed),
    )


def _validated(record: RunRecord, committed: commit_folder.CommitFolder) -> ValidationResult | None:
    """What the run was judged by, if the commit's state was measured and gave a number."""
    judged = record.validation
    state: Any = canonical_json.parse_canonical(committed.files["state.json"])
    value = BestSoFar.of_state(state).measured(state["step"])
    if judged is None or value is None:
        return None
    return ValidationResult(
        metric=judged["metric"], goal=judged["goal"], value=value, corpora=judged.get("corpora")
    )


def _selections(record: RunRecord) -> tuple[Selection, ...]:
    """The choices that the model came out of: a search, and early stopping."""
    searched = (record.selection,) if record.selection else ()
    judged = record.validation or {}
    if "earlyStopping" not in judged:
        return searched
    stopping = Selection(
        metric=judged["metric"],
        corpora=selecting_corpora(record.plan),
        validation=judged.get("corpora"),
        ended=record.ended,
    )
    return (*searched, stopping)


def _tensor_names(committed: commit_folder.CommitFolder, name: str) -> frozenset[str]:
    with whole_file.header(committed, name) as file:
        return frozenset(tensor.name for tensor in read_header(file, where=name))


def _finished(record: RunRecord) -> datetime:
    if record.finished is None:
        raise CouldNotCheck("the run has not ended", where=record.run_id, do="Resume it first")
    return record.finished


def _lines(envelopes: Any) -> bytes:
    return b"".join(envelope + b"\n" for envelope in envelopes)


def _put(path: Path, data: bytes) -> str:
    """Write a file and return its digest."""
    _place(path).write_bytes(data)
    return canonical_json.sha256(data)


def _place(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
