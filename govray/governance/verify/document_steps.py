"""Steps 4 to 7: the files, policy, credentials and manifest are the attested ones, and signed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from govray.errors import CouldNotCheck, Refused, UsageError
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.attestation.model_folder import Bundle, TensorFile
from govray.governance.formats.document import parse_time
from govray.governance.formats.tensor_header import MAX_HEADER
from govray.governance.policy.credential import Credential, verify_credential
from govray.governance.policy.depth_policy import Policy, verify_policy
from govray.governance.policy.globs import matches
from govray.governance.record.gates import Gate, read_gates
from govray.governance.record.prepare_manifest import Manifest, verify_manifest
from govray.governance.record.prepared_records import PreparedRecords, ReadPart
from govray.governance.trust.trust_state import TrustState, Verified
from govray.governance.verify.envelope_steps import check_signatures


def check_files(
    folder: Bundle, attested: Verified[Attestation], allowed: Sequence[str]
) -> tuple[dict[str, bool], dict[str, TensorFile]]:
    """Every file has its digest; returns the files not covered, each with whether it is inert, and
    the tensor files by name.

    Args:
        allowed: Globs of files that may be there without being attested.

    Raises:
        Refused: A file is missing, altered, or not covered though a loader may load it.
        CouldNotCheck: The ledger is missing.
    """
    attestation = attested.document
    subjects = {model_folder.check_name(s.name): s.sha256 for s in attested.subjects}
    for name in subjects:
        if name.split("/")[0].casefold() == model_folder.GOVERNANCE:
            raise Refused("a governance file is named as a model file", where=name)
    gone = {removal.adapter for removal in attestation.removals}
    expected = {model_folder.CONFIG, model_folder.WEIGHTS}
    expected.update({model_folder.EMA, model_folder.LOADER_CONFIG} & subjects.keys())
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
    others = [n for n in others if not model_folder.by_outsiders(n)]  # steps 14 to 16
    attested_names = {name.casefold() for name in digests}
    uncovered: dict[str, bool] = {}
    for name in others:
        if model_folder.reserved(name) or name.casefold() in attested_names:
            raise Refused(
                "the file is not covered by the attestation, but stands where one that is would",
                where=name,
                do="Remove it, or get the folder from its source again.",
            )
        uncovered[name] = folder.inert(name)
        if not uncovered[name] and not any(matches(glob, name) for glob in allowed):
            raise Refused(
                "a loader may load or execute this file, and the attestation does not cover it",
                where=name,
                do="Move it away, or get the folder from its source again. If you want it there: "
                "govray verify, trace, cosign and adapter take --allow-uncovered GLOB. Whatever "
                "else reads model folders takes no exception.",
            )
    return uncovered, weights


def _times(attestation: Attestation) -> tuple[datetime, datetime]:
    return parse_time(attestation.run.started), parse_time(attestation.run.finished)


def check_policy(folder: Bundle, trust: TrustState, attestation: Attestation) -> Verified[Policy]:
    """Step 5: the attested policy, in force when the run started and when it ended."""
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


def attested_gates(folder: Bundle, attestation: Attestation) -> tuple[Gate, ...]:
    """The gates of the run; none if the attestation pins no file of them."""
    if model_folder.GATES not in attestation.files:
        return ()
    digest = attestation.files[model_folder.GATES]
    gates = read_gates(folder.read(model_folder.GATES, limit=model_folder.MAX_LINES, digest=digest))
    if not gates:
        raise Refused("a file of gates without one", where=model_folder.GATES)
    return gates


def check_credentials(
    folder: Bundle, trust: TrustState, attestation: Attestation, gates: Sequence[Gate]
) -> dict[str, Verified[Credential]]:
    """Step 6: the attested credentials, each valid for as long as the run used its corpus."""
    started, finished = _times(attestation)
    credentials: dict[str, Verified[Credential]] = {}
    for line in folder.lines(
        model_folder.CREDENTIALS, digest=attestation.files[model_folder.CREDENTIALS]
    ):
        credential = verify_credential(trust, line, at=started)
        corpus = credential.document.corpus
        # A gated corpus was used for as long as its credential held, by the gate's own times.
        used_until = [g.last_use for g in gates if g.corpus == corpus and g.last_use]
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


def check_manifest(
    folder: Bundle,
    trust: TrustState,
    attestation: Attestation,
    credentials: Mapping[str, Verified[Credential]],
    at: datetime,
) -> Verified[Manifest]:
    """Step 7: the attested manifest, over as many records as the credentials have.
    `check_prepared` checks the records themselves."""
    by_payload = attestation.manifest_pinned_by_payload
    pinned = None if by_payload else attestation.files[model_folder.MANIFEST]
    data = folder.read(model_folder.MANIFEST, limit=model_folder.MAX_ENVELOPE, digest=pinned)
    verified = verify_manifest(trust, data, at=at)
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
        if entry.commitment != records.commitment:
            raise Refused("the corpus was prepared under another commitment", where=corpus)
        if (held := manifest.records(corpus)) != records.count:
            raise Refused(
                f"the manifest has {held} records, the credential says {records.count}",
                where=corpus,
            )
    documents = [each.document for each in credentials.values()]
    started, _ = _times(attestation)
    manifest.reserve.check_drawn(trust.root.beacon, documents, at=started)
    return verified


# Step 7, second half: the records that the manifest is about, as far as they are at hand.
#
# The depth of a verification says how much of them was read:
#
# * ``summary``: none. Whether they are the credentials' records is the signer's word, and so are
#   splits and packing. Only how many there are is compared.
# * ``sample``: some parts, each compared with all that the manifest says of it.
# * ``full``: all of them, and their Merkle roots are those of the credentials.
#
# Parts are drawn by the attestation's digest, so everybody who samples as much checks the same
# ones.


Depth: TypeAlias = Literal["summary", "sample", "full"]


@dataclass(frozen=True)
class CheckedRecords:
    """What was read of a manifest's records.
    ``records``: the records; None if they are not at hand."""

    depth: Depth
    records: PreparedRecords | None
    parts: tuple[int, int]

    def require(self) -> PreparedRecords:
        """The records, where they are at hand."""
        assert self.records is not None
        return self.records

    @property
    def detection(self) -> float:
        """Probability that a part whose records are not as stated is among those compared."""
        checked, of = self.parts
        return checked / of if of else 1.0


def check_prepared(
    manifest: Manifest,
    credentials: Mapping[str, Verified[Credential]],
    read: ReadPart | None,
    *,
    share: float | None,
    seed: str,
) -> CheckedRecords:
    """Compare the records with manifest and credentials.

    Args:
        read: Where records come from; None for a summary.
        share: Of the parts that are drawn, in (0, 1]; None for all.
        seed: Draws them.
    """
    parts = [(c.corpus, number) for c in manifest.corpora for number in range(len(c.parts))]
    if share is not None and (read is None or not 0 < share <= 1):
        raise UsageError(
            "a sample is a share in (0, 1] of records that are given",
            where="--sample",
            do="Name the prepared folder with --records, and a share such as 1e-4",
        )
    if read is None:
        return CheckedRecords("summary", None, (0, len(parts)))
    records = PreparedRecords(manifest, read)
    if share is not None and share < 1:
        drawn = _drawn(parts, share, seed)
        for corpus, number in drawn:
            records.check_part(corpus, number)
        return CheckedRecords("sample", records, (len(drawn), len(parts)))
    roots = records.check()
    for corpus, credential in credentials.items():
        if roots.get(corpus) != credential.document.records.root:
            raise Refused(
                "the manifest's records do not have the Merkle root of the credential",
                where=corpus,
            )
    return CheckedRecords("full", records, (len(parts), len(parts)))


def _drawn(parts: list[tuple[str, int]], share: float, seed: str) -> list[tuple[str, int]]:
    """At least one of the parts."""
    order = sorted(
        parts, key=lambda part: hashlib.sha256(f"{seed} {part[0]} {part[1]}".encode()).digest()
    )
    return sorted(order[: max(1, math.ceil(share * len(parts)))])
