"""Steps 5 to 7: policy, credentials and manifest are signed, in force, and the attested ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from govray.errors import Refused
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.attestation.model_folder import Bundle
from govray.governance.formats.document import parse_time
from govray.governance.policy.credential import Credential, verify_credential
from govray.governance.policy.depth_policy import Policy, verify_policy
from govray.governance.record.gates import Gate, read_gates
from govray.governance.record.prepare_manifest import Manifest, verify_manifest
from govray.governance.trust.trust_state import TrustState, Verified
from govray.governance.verify.envelope_steps import check_signatures


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
    ``records_step`` checks the records themselves."""
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
    return verified
