"""The verifier: a model folder and a trust root in, a verified value or a numbered error out.

``verify`` works offline, from files alone, and never returns a boolean: what comes back is the
value to use. Its numbered steps are those of ``steps.py``; each is one small function.

Invariants

* The trust root comes from the caller, or from where the user pinned one earlier. A root that
  lies inside the folder being verified is refused, whatever it says.
* Nothing is parsed before the bytes it stands in are bound: the attestation by its signature,
  every other file by the attestation's digests.
* What can be recomputed is recomputed, with the functions that made it (``model_attestation.py``,
  ``coverage.py``, ``batch_plan.py``), and compared.
* The reference time is an argument. When the caller gives none the clock is read, once, in
  ``verify`` (and in the two entry points for single envelopes): the outermost call that a person
  makes, and the only clock in this layer.

What cannot be checked here, and is the signer's word: that no other data was used, which tensors
a layer group means, the environment, the times, the operator's own replays, and removals beyond
these files; and the other items of ``attestation.DISCLAIMER``. The folder must not change while
it is verified.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from govray.errors import CouldNotCheck, Refused, UsageError, VerificationFailed
from govray.governance.attestation import coverage, model_folder
from govray.governance.attestation.coverage_table import CoverageTable
from govray.governance.attestation.model_attestation import (
    DISCLAIMER,
    AssuranceLevel,
    Attestation,
    admit,
    exclusion_levels,
    frozen_domains,
    group_taint,
    run_adapters,
)
from govray.governance.attestation.model_folder import Bundle, TensorFile
from govray.governance.attestation.replay_check import ReplayCheck, verify_replay_checks
from govray.governance.attestation.tree_heads import check_heads
from govray.governance.formats import canonical_json
from govray.governance.formats.document import format_time, parse_time
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.signed_note import TreeHead
from govray.governance.formats.statement import Subject
from govray.governance.formats.tensor_header import MAX_HEADER
from govray.governance.policy.credential import Credential, verify_credential
from govray.governance.policy.depth_policy import Policy, verify_policy
from govray.governance.policy.globs import Glob, matches
from govray.governance.policy.revoked import revoked_credential, revoked_policy
from govray.governance.policy.route import Route
from govray.governance.record.gates import Gate, read_gates
from govray.governance.record.ledger import Ledger
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.selection_taint import check_selection
from govray.governance.trust.anchor import TrustAnchor, read_file, read_lists
from govray.governance.trust.revocation_list import Revocations, Revoked
from govray.governance.trust.trust_state import TrustState, Verified
from govray.governance.verify import steps
from govray.governance.verify.ledger_steps import (
    MAX_ROWS,
    check_gates,
    check_incidents,
    check_ledger,
)
from govray.governance.verify.replay_step import Replayer, check_replays
from govray.governance.verify.steps import Step

_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class VerifiedModel:
    """A model folder that passed every step.

    Attributes:
        path: The folder.
        attestation: The predicate.
        digest: Of the attestation's statement.
        subjects: The model files and their digests.
        uncovered: Files of the folder that the attestation says nothing about: of the kinds that
            no loader reads, or allowed by the caller.
        signer: Name of the operator authority that signed.
        keyids: Its keys that signed.
        trust_root: The root that everything was checked against.
        routes: Corpus → route.
        ledger: Its leaves of steps and its gradient norms.
        gates: Which corpora the run left out, from which step on.
        revocations: The lists that it was checked against, and those that were passed over; None
            if there was none.
        revoked: Corpus, ``policy`` or ``attestation`` to its revocation, where that counts only
            from after the run, or after the reference time.
        replay_checks: What second parties signed about this attestation.
        heads: The signed heads that were given, each of which the ledger extends or has.
        replayed_by: Corpus → who replayed the run without it and got the same files.
    """

    path: Path
    attestation: Attestation
    digest: str
    subjects: tuple[Subject, ...]
    uncovered: tuple[str, ...]
    signer: str
    keyids: frozenset[str]
    trust_root: TrustState
    policy: Verified[Policy]
    credentials: Mapping[str, Verified[Credential]]
    manifest: Verified[Manifest]
    routes: Mapping[str, Route]
    ledger: Ledger
    gates: tuple[Gate, ...]
    revocations: Revocations | None
    revoked: Mapping[str, Revoked]
    replay_checks: tuple[Verified[ReplayCheck], ...] = ()
    heads: tuple[TreeHead, ...] = ()
    replayed_by: Mapping[str, tuple[Replayer, ...]] = field(default_factory=dict)

    @property
    def assurance_level(self) -> AssuranceLevel:
        """What the signatures here amount to; the attestation alone is `selfAttested`."""
        return "replayChecked" if self.replay_checks else self.attestation.assurance_level

    @cached_property
    def coverage(self) -> CoverageTable:
        """Coverage by (corpus or licence category, layer group)."""
        return CoverageTable(self.attestation, self.routes, self.ledger.steps)


def verify(
    path: Path | str,
    *,
    trust_root: TrustAnchor | Path | str | bytes | None = None,
    revocations: Sequence[Path | str | bytes] = (),
    at: datetime | None = None,
    replay_checks: Sequence[Path | str | bytes] = (),
    also: Sequence[Path | str | bytes] = (),
    max_rows: int | None = MAX_ROWS,
    allow_uncovered: Sequence[str] = (),
) -> VerifiedModel:
    """Verify a model folder, or the one that a file lies in, from its files alone.

    The steps are those of `STEPS` (``steps.py``), each with what has to hold.

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

    Raises:
        VerificationFailed: a step failed. The message begins with its number and name.
        CouldNotCheck: no trust root, no attestation, no ledger, or no revocation list as fresh as
            the root asks; or ``path`` is a file that the attestation of its folder does not cover.
        UsageError: no such path; or a glob that is none.
    """
    return _verify(
        path, trust_root, revocations, at, replay_checks, also, max_rows, allow_uncovered
    )


def verify_to_cosign(
    path: Path | str,
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


def _verify(
    path: Path | str,
    trust_root: TrustAnchor | Path | str | bytes | None,
    revocations: Sequence[Path | str | bytes],
    at: datetime | None,
    replay_checks: Sequence[Path | str | bytes],
    also: Sequence[Path | str | bytes],
    max_rows: int | None,
    allow_uncovered: Sequence[str],
    *,
    one_key: bool = False,
) -> VerifiedModel:
    at = at or datetime.now(UTC)
    for glob in allow_uncovered:
        _check_glob(glob)
    folder = _open(Path(path))
    with _step(steps.TRUST_ROOT):
        anchor = _anchor(folder, trust_root, revocations)
        trust = TrustState.load(anchor.root, at=at, delegations=_delegations(folder))
    with _step(steps.REVOCATIONS):  # here, since a delegation may be revoked
        whole = anchor.apply(trust, at=at)
        trust = whole.each_key_counts("operator") if one_key else whole
    with _step(steps.SIGNATURE):
        data = folder.read(model_folder.ATTESTATION, limit=model_folder.MAX_ENVELOPE)
        envelope = Envelope.parse(data, where="attestation")
        attested = trust.verify(Attestation, envelope, role="operator", at=at, where="attestation")
        check_signatures(envelope, attested)
    attestation = attested.document
    with _step(steps.STATEMENT):
        check_statement(attestation, trust, at)
    with _step(steps.FILES):
        uncovered, weights = _check_files(folder, attested, allow_uncovered)
    with _step(steps.POLICY):
        policy = _check_policy(folder, trust, attestation)
    with _step(steps.CREDENTIALS):
        gates = _read_gates(folder, attestation)
        credentials = _check_credentials(folder, trust, attestation, gates)
    with _step(steps.MANIFEST):
        manifest = _check_manifest(folder, trust, attestation, credentials, at)
    with _step(steps.ROUTES):
        routes = _check_routes(weights, attestation, policy.document, credentials)
    with _step(steps.PLAN):
        _check_plan(attestation, manifest.document, routes)
    with _step(steps.LEDGER):
        check_gates(gates, policy.document, attestation)
        ledger = check_ledger(folder, attested, manifest.document, routes, gates, max_rows)
        check_incidents(attestation, policy.document, routes, manifest.document, ledger, gates)
        heads = check_heads(trust, ledger, _heads(also))
    with _step(steps.COVERAGE):
        _check_coverage(attested, ledger, manifest.document, routes)
        replayed_by = check_replays(folder, trust, attested, at=at)
    with _step(steps.ASSURANCE):
        check_assurance(attestation)
    with _step(steps.REVOCATIONS):
        revoked = _check_revocations(trust, attested, policy, credentials, ledger, gates, at)
    with _step(steps.REPLAY_CHECKS):
        given = _replay_checks(folder, replay_checks)
        checks = verify_replay_checks(trust, given, attested, canonical_json.sha256(data), at=at)
    _check_asked(Path(path), folder, uncovered)
    return VerifiedModel(
        path=folder.root,
        attestation=attestation,
        digest=attested.digest,
        subjects=attested.subjects,
        uncovered=uncovered,
        signer=attested.authority.name,
        keyids=attested.keyids,
        trust_root=whole,
        policy=policy,
        credentials=credentials,
        manifest=manifest,
        routes=routes,
        ledger=ledger,
        gates=gates,
        revocations=trust.revocations,
        revoked=revoked,
        replay_checks=checks,
        heads=heads,
        replayed_by=replayed_by,
    )


def verify_policy_file(
    path: Path | str,
    *,
    trust_root: Path | str | bytes | None = None,
    revocations: Sequence[Path | str | bytes] = (),
    at: datetime | None = None,
) -> Verified[Policy]:
    """Verify one signed policy.

    Raises:
        Refused: not signed by a policy authority, expired, revoked, too old, malformed.
        CouldNotCheck: no trust root, or no revocation list as fresh as it asks.
        UsageError: no such file.
    """
    at = at or datetime.now(UTC)
    trust = TrustAnchor.read(trust_root, revocations).load(at=at)
    policy = verify_policy(trust, read_file(Path(path), model_folder.MAX_ENVELOPE), at=at)
    check_unrevoked_policy(trust, policy, at=at)
    return policy


def verify_corpus_credential(
    path: Path | str,
    *,
    trust_root: Path | str | bytes | None = None,
    revocations: Sequence[Path | str | bytes] = (),
    delegations: Sequence[bytes] = (),
    at: datetime | None = None,
) -> Verified[Credential]:
    """Verify one signed credential: the file itself, or the corpus folder it lies in.

    The corpus's records are not read; admission compares them with the credential's Merkle root.

    Raises:
        Refused: out of its issuer's scope, expired, revoked, malformed.
        CouldNotCheck: no trust root, or no revocation list as fresh as it asks.
        UsageError: no such file.
    """
    at = at or datetime.now(UTC)
    file = Path(path)
    if file.is_dir():
        file = file / "credential.dsse.json"
    trust = TrustAnchor.read(trust_root, revocations).load(at=at, delegations=delegations)
    credential = verify_credential(trust, read_file(file, model_folder.MAX_ENVELOPE), at=at)
    check_unrevoked_credential(trust, credential, at=at)
    return credential


def check_unrevoked_policy(trust: TrustState, policy: Verified[Policy], *, at: datetime) -> None:
    """Refuse a policy that is revoked at ``at``.

    Raises:
        Refused: It is.
    """
    found = revoked_policy(trust.revocations, policy) if trust.revocations else None
    if found and found.since <= at:
        raise _revoked(f"policy {policy.document}", found)


def check_unrevoked_credential(
    trust: TrustState, credential: Verified[Credential], *, at: datetime
) -> None:
    """Refuse a credential that is revoked at ``at``.

    Raises:
        Refused: It is; or a list revokes it whose issuer could not have issued it.
    """
    found = revoked_credential(trust.revocations, credential) if trust.revocations else None
    if found and found.since <= at:
        raise _revoked(f"credential of corpus {credential.document.corpus}", found)


@contextmanager
def _step(step: Step) -> Iterator[None]:
    """Name the step in whatever refuses inside it."""
    try:
        yield
    except Refused as error:
        raise VerificationFailed(
            f"step {step.number} ({step.name}): {error.what}", where=error.where, do=error.do
        ) from error


def _open(path: Path) -> Bundle:
    if not path.exists():
        raise UsageError("no such file or folder", where=str(path), do="Give a model folder.")
    root = model_folder.find_model(path)
    if root is None:
        raise CouldNotCheck(
            "there is no attestation here",
            where=str(path),
            do=f"Give a folder that holds {model_folder.ATTESTATION}, or a file in one.",
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


def _check_asked(path: Path, folder: Bundle, uncovered: Sequence[str]) -> None:
    """A folder that verifies says nothing about a file in it that is not covered."""
    asked = path.resolve().relative_to(folder.root.resolve()).as_posix()
    if any(name == asked or name.startswith(f"{asked}/") for name in uncovered):
        raise CouldNotCheck(
            "the attestation of its folder says nothing about this file",
            where=str(path),
            do="Verify a file that it covers, or the folder.",
        )


# Step 1


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
    if anchor.source and anchor.source.resolve().is_relative_to(folder.root.resolve()):
        raise Refused(
            "a trust root from inside the folder being verified is never trusted",
            where=str(anchor.source),
            do="Get the trust root from its owner, by another way than the model.",
        )
    return anchor


# Steps 2 and 3


def check_signatures(
    data: bytes | Envelope, verified: Verified[Any], *, where: str = model_folder.ATTESTATION
) -> None:
    """Steps 2 and 7: every signature in the envelope is one of the signer's.

    Raises:
        Refused: There are others.
    """
    # Key hints and further signatures are not signed by anybody. Elsewhere they are harmless;
    # here they are bytes of the folder that no digest binds, so there are none to spare.
    envelope = data if isinstance(data, Envelope) else Envelope.parse(data)
    hints = [signature.keyid for signature in envelope.signatures]
    if sorted(hint or "" for hint in hints) != sorted(verified.keyids):
        raise Refused(
            "the envelope holds signatures or key hints other than the signer's", where=where
        )


def check_statement(attestation: Attestation, trust: TrustState, at: datetime) -> None:
    """Step 3: the run, then removals, before ``at``; under this trust root or an earlier one.

    Raises:
        Refused: It did not.
    """
    if parse_time(attestation.run.finished) > at:
        raise Refused(
            f"the run finished at {attestation.run.finished}, after the reference time",
            where="attestation run.finished",
        )
    for removal in attestation.removals:
        where = f"attestation removals of adapter {removal.adapter}"
        if parse_time(removal.removed) < parse_time(attestation.run.finished):
            raise Refused(
                f"removed at {removal.removed}, before the run finished at "
                f"{attestation.run.finished}",
                where=where,
            )
        if parse_time(removal.removed) > at:
            raise Refused(f"removed at {removal.removed}, after the reference time", where=where)
    named = attestation.trust_root
    if named.name != trust.root.name:
        raise Refused(
            f"the run was under the trust root {named.name!r}, this one is {trust.root.name!r}",
            where="attestation trustRoot",
        )
    if named.version > trust.root.version:
        raise Refused(
            f"the run was under version {named.version} of the trust root, this one is "
            f"version {trust.root.version}",
            where="attestation trustRoot",
            do="Get the current trust root from its owner.",
        )
    if named.version == trust.root.version and named.digest != trust.digest:
        raise Refused(
            f"another trust root with version {named.version} was used",
            where="attestation trustRoot",
        )


# Step 4


def _check_files(
    folder: Bundle, attested: Verified[Attestation], allowed: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, TensorFile]]:
    """The files that are not covered, and what was read of those that hold tensors."""
    attestation = attested.document
    subjects = {model_folder.check_name(s.name): s.sha256 for s in attested.subjects}
    for name in subjects:
        if name.split("/")[0].casefold() == model_folder.GOVERNANCE:
            raise Refused("a governance file is named as a model file", where=name)
    gone = {removal.adapter for removal in attestation.removals}
    expected = {model_folder.CONFIG, model_folder.WEIGHTS}
    for adapter in attestation.adapters:
        if adapter.name not in gone:
            expected.update(model_folder.adapter_files(adapter.name))
    claimed = {name for name in subjects if model_folder.covered(name)}
    for name in sorted(expected ^ claimed):
        raise Refused(
            "the attestation does not cover this file"
            if name in expected
            else "the attestation covers a file that the model does not have",
            where=name,
        )
    pinned = set(attestation.files)
    required = {
        model_folder.POLICY,
        model_folder.MANIFEST,
        model_folder.CREDENTIALS,
        model_folder.LEDGER,
    }
    required.add(model_folder.CHECKPOINT)
    for name in sorted(required - pinned) + sorted(
        pinned - required - {model_folder.DELEGATIONS, model_folder.GATES, model_folder.REPLAYS}
    ):
        raise Refused("the attestation pins the wrong governance files", where=name)
    present = folder.names()
    if model_folder.LEDGER not in present:
        raise CouldNotCheck(
            "the ledger is missing",
            where=model_folder.LEDGER,
            do="Get the whole model folder from where this one came from.",
        )
    digests = subjects | dict(attestation.files)
    weights: dict[str, TensorFile] = {}
    heads = 0
    for name, digest in sorted(digests.items()):
        if name not in present:
            raise Refused("the file is missing", where=name)
        if name in expected and name.endswith(".safetensors"):
            weights[name] = folder.tensor_file(name)
            found = weights[name].sha256
            heads += len(weights[name].head)
        else:
            found = folder.sha256(name)
        by_payload = (
            name == model_folder.MANIFEST and attestation.manifest_pinned_by_payload
        )  # step 7
        if f"sha256:{found}" != digest and not by_payload:
            raise Refused("the file is not the one that was attested", where=name)
        if heads > MAX_HEADER:
            raise Refused(f"the headers of all weights exceed {MAX_HEADER} bytes", where=name)
    others = [n for n in present if n not in digests and n != model_folder.ATTESTATION]
    others = [n for n in others if model_folder.replay_party(n) is None]  # step 14
    attested_names = {name.casefold() for name in digests}
    for name in others:
        if model_folder.reserved(name) or name.casefold() in attested_names:
            raise Refused(
                "the file is not covered by the attestation, but stands where one that is would",
                where=name,
                do="Remove it, or get the folder from its source again.",
            )
        if not model_folder.inert(name) and not any(matches(glob, name) for glob in allowed):
            raise Refused(
                "a loader may load or execute this file, and the attestation does not cover it",
                where=name,
                do="Move it away, or get the folder from its source again. If you want it there: "
                "govray verify, trace, cosign and adapter take --allow-uncovered GLOB. Whatever "
                "else reads model folders takes no exception.",
            )
    return tuple(others), weights


# Steps 5 to 7


def _times(attestation: Attestation) -> tuple[datetime, datetime]:
    return parse_time(attestation.run.started), parse_time(attestation.run.finished)


def _check_policy(folder: Bundle, trust: TrustState, attestation: Attestation) -> Verified[Policy]:
    digest = attestation.files[model_folder.POLICY]
    data = folder.read(model_folder.POLICY, limit=model_folder.MAX_ENVELOPE, digest=digest)
    for at in _times(attestation):
        policy = verify_policy(trust, data, at=at)
    named, document = attestation.policy, policy.document
    if (named.name, named.version, named.digest) != (
        document.name,
        document.version,
        policy.digest,
    ):
        raise Refused("the policy is not the one that was attested", where=model_folder.POLICY)
    return policy


def _read_gates(folder: Bundle, attestation: Attestation) -> tuple[Gate, ...]:
    if model_folder.GATES not in attestation.files:
        return ()
    digest = attestation.files[model_folder.GATES]
    gates = read_gates(folder.read(model_folder.GATES, limit=model_folder.MAX_LINES, digest=digest))
    if not gates:
        raise Refused("a file of gates without one", where=model_folder.GATES)
    return gates


def _check_credentials(
    folder: Bundle, trust: TrustState, attestation: Attestation, gates: Sequence[Gate]
) -> dict[str, Verified[Credential]]:
    started, finished = _times(attestation)
    credentials: dict[str, Verified[Credential]] = {}
    for line in folder.lines(
        model_folder.CREDENTIALS, digest=attestation.files[model_folder.CREDENTIALS]
    ):
        credential = verify_credential(trust, line, at=started)
        corpus = credential.document.corpus
        # A gated corpus was used for as long as its credential held, by the gate's own times.
        used_until = [
            parse_time(g.since) - _SECOND for g in gates if g.corpus == corpus and g.since
        ]
        verify_credential(trust, line, at=max([started, *used_until]) if used_until else finished)
        if corpus in credentials:
            raise Refused("a corpus has two credentials", where=corpus)
        credentials[corpus] = credential
    attested = {c.corpus: c.credential for c in attestation.corpora}
    for corpus in sorted(attested.keys() | credentials.keys()):
        if corpus not in credentials:
            raise Refused("the corpus has no credential", where=corpus)
        if corpus not in attested:
            raise Refused("a credential of a corpus that was not attested", where=corpus)
        if credentials[corpus].digest != attested[corpus]:
            raise Refused("the credential is not the one that was attested", where=corpus)
    return credentials


def _check_manifest(
    folder: Bundle,
    trust: TrustState,
    attestation: Attestation,
    credentials: Mapping[str, Verified[Credential]],
    at: datetime,
) -> Verified[Manifest]:
    by_payload = attestation.manifest_pinned_by_payload
    pinned = None if by_payload else attestation.files[model_folder.MANIFEST]
    data = folder.read(model_folder.MANIFEST, limit=model_folder.MAX_ENVELOPE, digest=pinned)
    verified = trust.verify(Manifest, data, role="operator", at=at, where="prepare manifest")
    if by_payload:
        check_signatures(data, verified, where=model_folder.MANIFEST)
    if verified.digest != attestation.manifest:
        raise Refused("the manifest is not the one that was attested", where=model_folder.MANIFEST)
    manifest = verified.document
    if manifest.quarantine != attestation.quarantine:
        raise Refused("the quarantine is not the manifest's", where="attestation quarantine")
    prepared = {c.corpus: c for c in manifest.corpora}
    for corpus in sorted(prepared.keys() ^ credentials.keys()):
        raise Refused("the corpus is not in both manifest and credentials", where=corpus)
    for corpus, entry in prepared.items():
        credential = credentials[corpus]
        if entry.credential != credential.digest:
            raise Refused("the corpus was prepared under another credential", where=corpus)
        if entry.class_digest != credential.document.credential_class.digest:
            raise Refused("the corpus was prepared under another class", where=corpus)
        records = credential.document.records
        if len(entry.records) != records.count:
            raise Refused(
                f"the manifest has {len(entry.records)} records, the credential says "
                f"{records.count}",
                where=corpus,
            )
        if manifest.merkle_root(corpus) != records.root:
            raise Refused(
                "the manifest's records do not have the Merkle root of the credential",
                where=corpus,
            )
    return verified


# Steps 8 and 9


def _check_routes(
    weights: Mapping[str, TensorFile],
    attestation: Attestation,
    policy: Policy,
    credentials: Mapping[str, Verified[Credential]],
) -> dict[str, Route]:
    base = attestation.base_groups
    corpora, routes = admit(policy, credentials, base)
    for stated, computed in zip(attestation.corpora, corpora, strict=True):
        if stated != computed:
            raise Refused(
                "class, rules or route do not follow from policy and credential",
                where=stated.corpus,
            )
    if attestation.domains != frozen_domains(routes, base):
        raise Refused("they do not follow from the routes", where="attestation domains")
    parameters = [p for g in attestation.groups for p in g.parameters]
    expected = [*parameters, *attestation.buffers]
    if len(set(base)) != len(base) or len(set(expected)) != len(expected):
        raise Refused("a group or a tensor is named twice", where="attestation groups")
    _check_tensors(weights, model_folder.WEIGHTS, frozenset(expected))
    tensors = {adapter.name: adapter.tensors for adapter in attestation.adapters}
    named = {route.adapter for route in routes.values() if route.adapter is not None}
    if tensors.keys() != named or attestation.adapters != run_adapters(routes, tensors):
        raise Refused("they do not follow from the routes", where="attestation adapters")
    gone = {removal.adapter for removal in attestation.removals}
    if len(gone) != len(attestation.removals) or not gone <= named:
        raise Refused("an adapter unknown, or removed twice", where="attestation removals")
    for name in sorted(named - gone):
        _check_tensors(weights, model_folder.adapter_files(name)[1], frozenset(tensors[name]))
    return routes


def _check_tensors(weights: Mapping[str, TensorFile], name: str, expected: frozenset[str]) -> None:
    found = weights[name].tensor_names(name)
    for tensor in sorted(found - expected):
        raise Refused(f"the tensor {tensor!r} is in no attested layer group", where=name)
    for tensor in sorted(expected - found):
        raise Refused(f"the tensor {tensor!r} is missing", where=name)


def _check_plan(attestation: Attestation, manifest: Manifest, routes: Mapping[str, Route]) -> None:
    plan = attestation.plan
    if plan.manifest != attestation.manifest or plan.context != manifest.context:
        raise Refused("the plan is over another manifest", where="attestation plan")
    if plan.corpora != tuple(sorted(routes)):
        raise Refused("the plan reads other corpora than were admitted", where="attestation plan")
    profiles = {c.corpus: c.profile for c in attestation.corpora}
    for stream in plan.streams:
        if stream.profile != min(profiles[member.corpus] for member in stream.corpora):
            raise Refused("the stream has another profile than its corpora", where=stream.id)
        for member in stream.corpora:
            if routes[member.corpus].digest != stream.id:
                raise Refused("the corpus is in a stream of another route", where=member.corpus)
            if manifest.train_rows(member.corpus) != member.rows:
                raise Refused(
                    f"the plan has {member.rows} rows, the manifest "
                    f"{manifest.train_rows(member.corpus)}",
                    where=member.corpus,
                )
    check_selection(attestation.selection_taint or (), plan)


# Step 10


def _heads(given: Sequence[Path | str | bytes]) -> list[tuple[str, bytes]]:
    """Name and note of each head that came apart from the folder."""
    return [
        (f"head {number}", each)
        if isinstance(each, bytes)
        else (str(each), read_file(Path(each), model_folder.MAX_NOTE))
        for number, each in enumerate(given, start=1)
    ]


# Step 11


def _check_coverage(
    attested: Verified[Attestation],
    ledger: Ledger,
    manifest: Manifest,
    routes: Mapping[str, Route],
) -> None:
    attestation = attested.document
    base, plan = attestation.base_groups, attestation.plan
    derived = coverage.coverage(ledger.steps, ledger.norms, routes, plan, manifest)
    computed = {(r.corpus, r.group): r for r in derived}
    stated = {(r.corpus, r.group): r for r in attestation.coverage}
    for place in sorted(computed.keys() | stated.keys()):
        if computed.get(place) != stated.get(place):
            raise Refused(
                "the coverage does not follow from the ledger", where=f"{place[0]} in {place[1]}"
            )
    if [(r.corpus, r.group) for r in attestation.coverage] != list(computed):
        raise Refused("entries are repeated or out of order", where="attestation coverage")
    taint = group_taint(routes, base, plan, attestation.domains, attestation.pretrained)
    for claimed, follows in zip(attestation.taint, taint, strict=False):
        if claimed != follows:
            raise Refused("it does not follow from the routes", where=f"taint of {claimed.group}")
    if len(attestation.taint) != len(taint):
        raise Refused("a layer group is missing or added", where="attestation taint")
    for group in sorted(attestation.pretrained.keys() - {t.group for t in taint}):
        raise Refused("the model has no such layer group", where=f"pretrained {group}")
    levels = exclusion_levels(
        routes, base, attestation.replays, attestation.removals, attestation.pretrained
    )
    for corpus in sorted(levels.keys() | attestation.levels.keys()):
        if levels.get(corpus) != attestation.levels.get(corpus):
            raise Refused("they do not follow from the evidence", where=f"levels of {corpus}")


# Step 12


def check_assurance(attestation: Attestation) -> None:
    """Step 12: no assurance level that nothing here shows; the disclaimer word for word.

    Raises:
        Refused: One or the other.
    """
    if attestation.assurance_level != "selfAttested":
        raise Refused(
            f"the folder holds nothing that shows more than selfAttested, it claims "
            f"{attestation.assurance_level}",
            where="attestation assuranceLevel",
        )
    if attestation.disclaimer != DISCLAIMER:
        raise Refused("the wording was changed", where="attestation disclaimer")


# Step 13


def _check_revocations(
    trust: TrustState,
    attested: Verified[Attestation],
    policy: Verified[Policy],
    credentials: Mapping[str, Verified[Credential]],
    ledger: Ledger,
    gates: Sequence[Gate],
    at: datetime,
) -> dict[str, Revoked]:
    lists, attestation = trust.revocations, attested.document
    if lists is None:
        return {}
    _, finished = _times(attestation)
    later: dict[str, Revoked] = {}
    if found := check_attestation(lists, attested, at):
        later["attestation"] = found
    if found := revoked_policy(lists, policy):
        if found.since <= finished:
            raise _used_revoked(f"policy {policy.document}", found)
        later["policy"] = found
    used = {corpus for leaf in ledger.steps for corpus in leaf.corpora}
    for corpus, credential in credentials.items():
        found = revoked_credential(lists, credential)
        if found is None:
            continue
        if corpus in used and found.since <= _used_until(corpus, gates, ledger, finished):
            raise _used_revoked(f"credential of corpus {corpus}", found)
        later[corpus] = found
    return later


def check_attestation(
    lists: Revocations, attested: Verified[Attestation], at: datetime
) -> Revoked | None:
    """Step 13 for the attestation itself: a revocation that counts only from after ``at``, or None.

    Raises:
        Refused: It is revoked.
    """
    signers = [authority.name for authority in attested.authorities]
    found = lists.of_attestation(attested.digest, signers)
    if found is None or found.since > at:
        return found
    raise Refused(
        f"revoked since {format_time(found.since)} ({found.reason})",
        where="attestation",
        do=f"That is list {found.sequence} of {found.issuer}. Ask its issuer for the model as it "
        "is now",
    )


def _used_until(corpus: str, gates: Sequence[Gate], ledger: Ledger, finished: datetime) -> datetime:
    """The last instant at which the run may have used ``corpus``, by its own times."""
    branches = {leaf.branch for leaf in ledger.steps if corpus in leaf.corpora}
    ends = {
        g.branch: parse_time(g.since) - _SECOND for g in gates if g.corpus == corpus and g.since
    }
    return max(ends.get(branch, finished) for branch in branches)


def _used_revoked(what: str, found: Revoked) -> Refused:
    return _revoked(what, found, ", and the run used it then")


def _revoked(what: str, found: Revoked, then: str = "") -> Refused:
    return Refused(
        f"revoked since {format_time(found.since)} ({found.reason}){then}",
        where=what,
        do=f"That is list {found.sequence} of {found.issuer}; ask its issuer",
    )


# Step 14


def _replay_checks(folder: Bundle, given: Sequence[Path | str | bytes]) -> list[tuple[str, bytes]]:
    """Name and envelope of the folder's own, and of those that came apart from it."""
    found = [
        (name, folder.read(name, limit=model_folder.MAX_ENVELOPE))
        for name in folder.names()
        if model_folder.replay_party(name) is not None
    ]
    for number, each in enumerate(given, start=1):
        if isinstance(each, bytes):
            found.append((f"replay check {number}", each))
        else:
            found.append((str(each), read_file(Path(each), model_folder.MAX_ENVELOPE)))
    return found
