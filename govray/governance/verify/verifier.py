"""The verifier: a model folder and a trust root in, a verified value or a numbered error out.

``_verify`` is the list of steps, in the order of ``steps.py``. Each step is a function here or in
the module of its subject. It raises, or returns what it verified.

Invariants

* The trust root comes from the caller, or from where the user pinned one earlier. A root inside
  the folder being verified is refused, whatever it says.
* Bytes are bound before they are parsed: the attestation by its signature, every other file by
  the attestation's digests.
* What can be recomputed is recomputed, by the functions that made it, and compared.
* The reference time is an argument. If the caller gives none, the clock is read once,
  here. Nothing else in this layer reads it.

Some of it remains the signer's word: that no other data was used, which tensors a layer group
means, the environment and the times. So do its own replays, and removals beyond these files. The
other items are in `DISCLAIMER`. The folder must not change while it is verified.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from govray.errors import CouldNotCheck, Refused, UsageError, VerificationFailed
from govray.governance.attestation import model_folder
from govray.governance.attestation.coverage_table import CoverageTable
from govray.governance.attestation.model_attestation import AssuranceLevel, Attestation
from govray.governance.attestation.model_folder import Bundle
from govray.governance.attestation.replay_check import ReplayCheck, verify_replay_checks
from govray.governance.attestation.tree_heads import check_heads
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import IN_TOTO, Envelope
from govray.governance.formats.keys import PublicKey
from govray.governance.formats.signed_note import TreeHead
from govray.governance.formats.statement import Subject, read
from govray.governance.notary.cosignature import Cosignature, check_cosignatures, missing_witnesses
from govray.governance.notary.timestamp import MAX_RESPONSE, Timestamp, check_timestamps
from govray.governance.policy.corpus_routes import CorpusRoutes
from govray.governance.policy.credential import Credential
from govray.governance.policy.depth_policy import Policy
from govray.governance.policy.globs import Glob
from govray.governance.record.gates import Gate
from govray.governance.record.ledger import Ledger
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.prepared_records import (
    PreparedRecords,
    ReadPart,
    RecordCounts,
    StatedRecords,
)
from govray.governance.trust.anchor import TrustAnchor, read_file, read_lists
from govray.governance.trust.revocation_list import Revocations, Revoked
from govray.governance.trust.trust_state import TrustState, Verified
from govray.governance.verify import steps
from govray.governance.verify.document_steps import (
    CheckedRecords,
    Depth,
    attested_gates,
    check_credentials,
    check_files,
    check_manifest,
    check_policy,
    check_prepared,
)
from govray.governance.verify.envelope_steps import (
    check_assurance,
    check_execution,
    check_signatures,
    check_statement,
)
from govray.governance.verify.ledger_step import MAX_ROWS, check_ledger
from govray.governance.verify.plan_steps import check_coverage, check_plan, check_routes
from govray.governance.verify.replay_step import Replayer, check_replays
from govray.governance.verify.revocation_step import check_revocations
from govray.governance.verify.steps import Step
from govray.storage.place import Place, place


@dataclass(frozen=True)
class VerifiedModel:
    """A model folder that passed every step.

    Attributes:
        digest: Of the attestation's statement.
        uncovered: Files of the folder that the attestation says nothing about: inert, or allowed
            by the caller.
        loadable: Those of them that a loader may load or execute.
        signer: Name of the operator authority that signed.
        checked: What was read of the manifest's records.
        routes: Corpus → route, and the fallbacks.
        ledger: Its leaves of steps and its gradient norms.
        gates: Which corpora the run left out, from which step on.
        revocations: The lists that it was checked against, and those that were passed over; None
            if there was none.
        revoked: Corpus, ``policy`` or ``attestation`` to its revocation, where that counts only
            from after the run, or after the reference time.
        replay_checks: What second parties signed about this attestation.
        heads: The signed heads that were given, each of which the ledger extends or has.
        replayed_by: Corpus → who replayed the run without it and got the same files.
        timestamps: What timestamp authorities of the root signed over the attestation's bytes, the
            earliest first.
        cosignatures: Of the root's witnesses over the ledger's head.
    """

    path: Place
    attestation: Attestation
    digest: str
    subjects: tuple[Subject, ...]
    uncovered: tuple[str, ...]
    loadable: tuple[str, ...]
    signer: str
    keyids: frozenset[str]
    trust_root: TrustState
    policy: Verified[Policy]
    credentials: Mapping[str, Verified[Credential]]
    manifest: Verified[Manifest]
    checked: CheckedRecords
    routes: CorpusRoutes
    ledger: Ledger
    gates: tuple[Gate, ...]
    revocations: Revocations | None
    revoked: Mapping[str, Revoked]
    replay_checks: tuple[Verified[ReplayCheck], ...] = ()
    heads: tuple[TreeHead, ...] = ()
    replayed_by: Mapping[str, tuple[Replayer, ...]] = field(default_factory=dict)
    timestamps: tuple[Timestamp, ...] = ()
    cosignatures: tuple[Cosignature, ...] = ()

    @property
    def witnessed(self) -> bool:
        """Whether as many witnesses cosigned the ledger's head as the root's policy asks for."""
        return missing_witnesses(self.trust_root, self.cosignatures) == 0

    @property
    def assurance_level(self) -> AssuranceLevel:
        """What the signatures here amount to; the attestation alone is `selfAttested`.

        A second party's replay comes before witnesses, who saw the ledger's head alone.
        """
        if self.replay_checks:
            return "replayChecked"
        return "witnessed" if self.witnessed else self.attestation.assurance_level

    @property
    def depth(self) -> Depth:
        """How much was read of the manifest's records."""
        return self.checked.depth

    @property
    def targets_bounded(self) -> bool:
        """Whether steps' loss targets were compared with bounds and totals alone.

        So it is for masked rows (conversations) whose records were not all read.
        """
        return self.manifest.document.masked and self.depth != "full"

    @property
    def records(self) -> PreparedRecords:
        """The manifest's records.

        Raises:
            CouldNotCheck: They are not at hand.
        """
        if self.checked.records is None:
            raise CouldNotCheck(
                "the model's records are not here: its manifest has counts and digests of them",
                where=str(self.path),
                do="Name the prepared folder of its run with --records",
            )
        return self.checked.records

    @property
    def record_counts(self) -> RecordCounts:
        """How many records rows hold: counted, or as stated in a summary."""
        return _record_counts(self.checked, self.manifest.document, self.attestation)

    @cached_property
    def coverage(self) -> CoverageTable:
        """Coverage by (corpus or licence category, layer group)."""
        return CoverageTable(self.attestation, self.routes, self.ledger.steps)


def verify(
    path: Place | str,
    *,
    trust_root: TrustAnchor | Path | str | bytes | None = None,
    revocations: Sequence[Path | str | bytes] = (),
    at: datetime | None = None,
    replay_checks: Sequence[Path | str | bytes] = (),
    also: Sequence[Path | str | bytes] = (),
    max_rows: int | None = MAX_ROWS,
    allow_uncovered: Sequence[str] = (),
    records: ReadPart | None = None,
    sample: float | None = None,
) -> VerifiedModel:
    """Verify a model folder, or the one that a file lies in, from its files alone.

    The steps are those of `STEPS` (``steps.py``).

    Args:
        path: A model folder or a file in one; links and ``..`` are followed first.
        trust_root: Envelope of the trust root, or its path; or what was read of both. The pinned
            one by default, with the lists pinned beside it.
        revocations: Envelopes of revocation lists, their paths, or folders of them. Without one,
            nothing is known of revocations, and that is enough if the root asks for none.
        replay_checks: Envelopes, or their paths, that travel apart from the folder.
        also: Signed heads of the same run that were seen elsewhere, or their paths.
        max_rows: Rows that its steps may have read; None for any number.
        allow_uncovered: Globs (``globs.py``) of files that may be there without being attested.
            None can allow a file below ``adapters/`` or ``governance/``, or another spelling of
            an attested name.
        at: Reference time, aware; now by default.
        records: Reads the manifest's records from files of the prepared folder
            (`govray.data.records_file`). Without it the model is verified as a summary.
        sample: Share of the records' parts to read; None for all of them.

    Raises:
        VerificationFailed: a step failed. The message begins with its number and name.
        CouldNotCheck: There is no trust root, attestation, ledger, or fresh enough revocation list.
            Or ``path`` is a file that the attestation of its folder does not cover.
        UsageError: no such path; or a glob that is malformed.
    """
    return _verify(
        path,
        trust_root,
        revocations,
        at,
        replay_checks,
        also,
        max_rows,
        allow_uncovered,
        records,
        sample,
    )


def verify_to_cosign(
    path: Place | str,
    *,
    trust_root: TrustAnchor | Path | str | bytes | None = None,
    revocations: Sequence[Path | str | bytes] = (),
    at: datetime | None = None,
    allow_uncovered: Sequence[str] = (),
) -> VerifiedModel:
    """Every step of `verify`, but one key of the operator is enough.

    For a holder of a further key, who looks before signing. It is no verdict: whoever holds one
    of the keys could have made the folder. Raises as `verify`.
    """
    return _verify(
        path, trust_root, revocations, at, (), (), MAX_ROWS, allow_uncovered, one_key=True
    )


def verify_unsigned(
    path: Place,
    payload: bytes,
    signer: PublicKey,
    *,
    trust_root: TrustAnchor | Path | str | bytes | None = None,
    at: datetime,
    records: ReadPart | None = None,
) -> VerifiedModel:
    """Every step of `verify`, as if ``signer`` had signed the statement ``payload``.

    For an attestor, who looks before it signs: ``path`` is a model folder but for the attestation.
    The ledger's head is signed already. Raises as `verify`.
    """
    asked = (payload, signer)
    return _verify(
        path, trust_root, (), at, (), (), None, (), records, one_key=True, unsigned=asked
    )


def _verify(
    path: Place | str,
    trust_root: TrustAnchor | Path | str | bytes | None,
    revocations: Sequence[Path | str | bytes],
    at: datetime | None,
    replay_checks: Sequence[Path | str | bytes],
    also: Sequence[Path | str | bytes],
    max_rows: int | None,
    allow_uncovered: Sequence[str],
    records: ReadPart | None = None,
    sample: float | None = None,
    *,
    one_key: bool = False,
    unsigned: tuple[bytes, PublicKey] | None = None,
) -> VerifiedModel:
    at = at or datetime.now(UTC)
    for glob in allow_uncovered:
        _check_glob(glob)
    asked = _place(path)
    folder = Bundle(asked) if unsigned else _open(asked)
    with _step(steps.TRUST_ROOT):
        anchor = _anchor(folder, trust_root, revocations)
        trust = TrustState.load(anchor.root, at=at, delegations=_delegations(folder))
    with _step(steps.REVOCATIONS):  # here, since a delegation may be revoked
        whole = anchor.apply(trust, at=at)
        trust = whole.each_key_counts("operator") if one_key else whole
    with _step(steps.SIGNATURE):
        data, attested = (
            (unsigned[0], _as_if_signed(*unsigned, trust, at))
            if unsigned
            else _signed_attestation(folder, trust, at)
        )
        attestation = attested.document
    with _step(steps.STATEMENT):
        check_statement(attestation, trust, at)
    with _step(steps.FILES):
        uncovered, weights = check_files(folder, attested, allow_uncovered)
    with _step(steps.POLICY):
        policy = check_policy(folder, trust, attestation)
    with _step(steps.CREDENTIALS):
        gates = attested_gates(folder, attestation)
        credentials = check_credentials(folder, trust, attestation, gates)
    with _step(steps.MANIFEST):
        manifest = check_manifest(folder, trust, attestation, credentials, at)
        checked = check_prepared(
            manifest.document, credentials, records, share=sample, seed=attested.digest
        )
    with _step(steps.ROUTES):
        routes = check_routes(weights, attestation, policy.document, credentials)
    with _step(steps.PLAN):
        check_plan(attestation, manifest.document, routes)
    with _step(steps.LEDGER):
        ledger = check_ledger(
            folder,
            attested,
            policy.document,
            manifest.document,
            routes,
            gates,
            max_rows,
            checked.records if checked.depth == "full" and manifest.document.masked else None,
        )
        heads = check_heads(trust, ledger, _apart(also, "head", model_folder.MAX_NOTE))
    with _step(steps.COVERAGE):
        counts = _record_counts(checked, manifest.document, attestation)
        check_coverage(attestation, ledger, manifest.document, counts, routes)
        replayed_by = check_replays(folder, trust, attested, at=at)
    with _step(steps.ASSURANCE):
        check_assurance(attestation)
    with _step(steps.REVOCATIONS):
        revoked = check_revocations(
            trust.revocations, attested, policy, credentials, ledger, gates, at
        )
    with _step(steps.REPLAY_CHECKS):
        given = _replay_checks(folder, replay_checks)
        checks = verify_replay_checks(trust, given, attested, canonical_json.sha256(data), at=at)
    with _step(steps.TIMESTAMP):
        timestamps = check_timestamps(
            trust, _timestamps(folder), data, finished=attestation.run.finished, at=at
        )
    with _step(steps.WITNESSES):
        head = TreeHead(ledger.origin, ledger.size, ledger.root)
        cosigned = _cosigned(folder)
        cosignatures = check_cosignatures(
            trust, cosigned, head, started=attestation.run.started, at=at
        )
    with _step(steps.EXECUTION):
        check_execution(attestation, attestation.execution, at)
    _check_asked(asked, folder, [*uncovered])
    return VerifiedModel(
        path=folder.root,
        attestation=attestation,
        digest=attested.digest,
        subjects=attested.subjects,
        uncovered=tuple(uncovered),
        loadable=tuple(name for name, inert in uncovered.items() if not inert),
        signer=attested.authority.name,
        keyids=attested.keyids,
        trust_root=whole,
        policy=policy,
        credentials=credentials,
        manifest=manifest,
        checked=checked,
        routes=routes,
        ledger=ledger,
        gates=gates,
        revocations=trust.revocations,
        revoked=revoked,
        replay_checks=checks,
        heads=heads,
        replayed_by=replayed_by,
        timestamps=timestamps,
        cosignatures=cosignatures,
    )


def _record_counts(
    checked: CheckedRecords, manifest: Manifest, attestation: Attestation
) -> RecordCounts:
    if checked.depth == "full":
        return checked.require()
    by_group: dict[str, dict[str, int]] = {}
    for each in attestation.coverage:
        by_group.setdefault(each.group, {})[each.corpus] = each.records
    stated = {each.corpus: each.records for each in attestation.coverage}
    return StatedRecords(manifest, stated, by_group)


@contextmanager
def _step(step: Step) -> Iterator[None]:
    """Name the step in whatever refuses inside it."""
    try:
        yield
    except Refused as error:
        raise VerificationFailed(
            f"step {step.number} ({step.name}): {error.what}", where=error.where, do=error.do
        ) from error


def _place(given: Place | str) -> Place:
    try:
        return place(given)
    except ValueError as error:
        raise UsageError(str(error), where="path") from None


def _open(path: Place) -> Bundle:
    if not path.exists():
        raise UsageError("no such file or folder", where=str(path), do="Give a model folder.")
    root = model_folder.find_model(path)
    if root is None:
        raise CouldNotCheck(
            "there is no attestation here",
            where=str(path),
            do=model_folder.what_to_give(path),
        )
    return Bundle(root)


def _check_glob(glob: str) -> None:
    try:
        TypeAdapter(Glob).validate_python(glob)
    except ValidationError:
        raise UsageError(
            "no glob: 1 to 256 characters without brackets",
            where=f"--allow-uncovered {glob[:80]!r}",
            do="Write * for any run of characters and ? for one, as in '*.gguf'.",
        ) from None


def _check_asked(path: Place, folder: Bundle, uncovered: Sequence[str]) -> None:
    """A folder that verifies says nothing about a file in it that is not covered."""
    asked = model_folder.name_inside(path, folder.root)
    if any(name == asked or name.startswith(f"{asked}/") for name in uncovered):
        raise CouldNotCheck(
            "the attestation of its folder says nothing about this file",
            where=str(path),
            do="Verify a file that it covers, or the folder.",
        )


def _delegations(folder: Bundle) -> tuple[bytes, ...]:
    if model_folder.DELEGATIONS not in folder.names():
        return ()
    # Read before any signature has been checked, so the limit is the tighter one.
    return folder.lines(model_folder.DELEGATIONS, limit=model_folder.MAX_ENVELOPE)


def _anchor(
    folder: Bundle,
    given: TrustAnchor | Path | str | bytes | None,
    revocations: Sequence[Path | str | bytes],
) -> TrustAnchor:
    if isinstance(given, TrustAnchor):
        anchor = replace(given, revocations=(*given.revocations, *read_lists(revocations)))
    else:
        anchor = TrustAnchor.read(given, revocations)
    root, source = folder.root.resolve(), anchor.source
    if source and isinstance(root, Path) and source.resolve().is_relative_to(root):
        raise Refused(
            "a trust root from inside the folder being verified is never trusted",
            where=str(anchor.source),
            do="Get the trust root from its owner, by another way than the model.",
        )
    return anchor


def _signed_attestation(
    folder: Bundle, trust: TrustState, at: datetime
) -> tuple[bytes, Verified[Attestation]]:
    """The attestation's envelope, and what an operator signed in it."""
    data = folder.read(model_folder.ATTESTATION, limit=model_folder.MAX_ENVELOPE)
    envelope = Envelope.parse(data, where="attestation")
    attested = trust.verify(Attestation, envelope, role="operator", at=at, where="attestation")
    check_signatures(envelope, attested)
    return data, attested


def _as_if_signed(
    payload: bytes, signer: PublicKey, trust: TrustState, at: datetime
) -> Verified[Attestation]:
    """The statement, by the operators' authorities that this key alone can speak for."""
    authorities = trust.held_by(signer, "operator", at=at)
    if not authorities:
        raise Refused("the key is no operator's of this trust root now", where=signer.keyid)
    sealed = read(Attestation, Envelope(IN_TOTO, payload, ()), where="attestation")
    keyids = frozenset({signer.keyid})
    return Verified(sealed.document, sealed.digest, sealed.subjects, authorities, keyids)


def _replay_checks(folder: Bundle, given: Sequence[Path | str | bytes]) -> list[tuple[str, bytes]]:
    """Name and envelope of the folder's own, and of those that came apart from it."""
    found = [
        (name, folder.read(name, limit=model_folder.MAX_ENVELOPE))
        for name in folder.names()
        if model_folder.replay_party(name) is not None
    ]
    return [*found, *_apart(given, "replay check", model_folder.MAX_ENVELOPE)]


def _timestamps(folder: Bundle) -> list[tuple[str, bytes]]:
    """Name and response of each timestamp in the folder."""
    return [
        (name, folder.read(name, limit=MAX_RESPONSE))
        for name in folder.names()
        if model_folder.timestamp_authority(name) is not None
    ]


def _cosigned(folder: Bundle) -> bytes | None:
    """The ledger's head with the witnesses' cosignatures, if there is one."""
    if model_folder.WITNESSED not in folder.names():
        return None
    return folder.read(model_folder.WITNESSED, limit=model_folder.MAX_NOTE)


def _apart(given: Sequence[Path | str | bytes], kind: str, limit: int) -> list[tuple[str, bytes]]:
    """Name and bytes of each, read if it is a path; bytes are named by their place."""
    return [
        (f"{kind} {number}", each)
        if isinstance(each, bytes)
        else (str(each), read_file(Path(each), limit))
        for number, each in enumerate(given, start=1)
    ]
