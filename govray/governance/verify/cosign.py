"""Signing in turns: a further holder of an operator's key signs what the first one made.

An operator whose threshold is two or more has its keys in several hands, and no process ever holds
two of them. One key begins: it prepares, trains, attests. What it leaves verifies as soon as enough
others have signed too. Each of them first verifies all that there is to verify, the missing
signatures excepted, under a trust root of its own choice.

A further signature changes an envelope's bytes and not its payload, so whatever pins the manifest
or the attestation pins its payload (`Attestation.manifest_pinned_by_payload`, `replay_check`).

Pure but for reading the folder: the caller writes what comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from govray.errors import CouldNotCheck, Refused, Untrusted
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.attestation.model_folder import Bundle
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import PublicKey, Signer
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.trust.authority import Authority
from govray.governance.trust.trust_state import TrustState
from govray.governance.verify.envelope_steps import check_signatures
from govray.governance.verify.verifier import VerifiedModel, verify_to_cosign

SIGNED_IN_TURNS = (model_folder.MANIFEST, model_folder.ATTESTATION)
"""What the operator signs of a model folder, in the order of writing."""


@dataclass(frozen=True)
class Cosigned:
    """A model's envelopes with one more signature.

    Attributes:
        model: What was verified before signing, all but the number of signatures.
        files: Name → envelope that has to be written, in this order; none if the key had signed.
        signatures: How many distinct keys of the operator have signed all of them.
        threshold: How many have to.
    """

    model: VerifiedModel
    files: Mapping[str, bytes]
    signatures: int
    threshold: int

    @property
    def complete(self) -> bool:
        """Whether the model verifies once the files are written."""
        return self.signatures >= self.threshold


def cosign_model(
    path: Path,
    signer: Signer,
    *,
    anchor: TrustAnchor,
    at: datetime,
    allow_uncovered: Sequence[str] = (),
) -> Cosigned:
    """Verify a model folder, and add a signature to what its operator signs.

    Args:
        signer: Of a key of the same operator.
        anchor: The signer's own trust root and revocation lists, never the folder's.

    Raises:
        VerificationFailed, CouldNotCheck: As `verify`, of anything but missing signatures.
        Damaged: What is to be signed changed since it was verified.
        Untrusted: The key is not of the operator that attested the model.
        Refused: The attestation is of a form that a further signature breaks.
    """
    root = model_folder.find_model(path)
    if root is None:
        raise CouldNotCheck(
            "there is no attestation here", where=str(path), do=model_folder.what_to_give(path)
        )
    folder = Bundle(root)
    model = verify_to_cosign(root, trust_root=anchor, at=at, allow_uncovered=allow_uncovered)
    operator = next(each for each in model.trust_root.authorities if each.name == model.signer)
    require_key(operator, signer.public_key)
    held = {name: folder.read(name, limit=model_folder.MAX_ENVELOPE) for name in SIGNED_IN_TURNS}
    if not model.attestation.manifest_pinned_by_payload:
        raise Refused(
            "the attestation pins the bytes of the manifest, which a further signature changes",
            where=str(root),
            do="Attest the run again: govray attest RUN",
        )
    if model.timestamps:
        require_untouched(held[model_folder.ATTESTATION], signer.public_key, str(root))
    files: dict[str, bytes] = {}
    signed: list[frozenset[str]] = []
    for name, data in held.items():
        envelope = Envelope.parse(data, where=name)
        require_verified(model, name, envelope, at=at)
        if not envelope.signed_by([signer.public_key]):
            files[name] = envelope.cosign([signer])
            envelope = Envelope.parse(files[name])
        signed.append(envelope.signed_by(operator.keys))
    return Cosigned(model, files, len(frozenset.intersection(*signed)), operator.threshold)


def require_untouched(attestation: bytes, key: PublicKey, where: str) -> None:
    """Refuse to add a signature of ``key`` to an attestation that was timestamped."""
    if not Envelope.parse(attestation).signed_by([key]):
        raise Refused(
            "the attestation has a timestamp over its bytes, which a further signature changes",
            where=where,
            do=f"Remove {model_folder.timestamp_file('*')} first, and ask for a timestamp anew "
            "when all have signed",
        )


def require_verified(model: VerifiedModel, name: str, envelope: Envelope, *, at: datetime) -> None:
    """Refuse an envelope that was read again, unless it is what was verified.
    Raises ``Damaged``: its payload differs. ``Refused``: a signature is not its operator's."""
    kinds: dict[str, tuple[type[Manifest] | type[Attestation], str]] = {
        model_folder.MANIFEST: (type(model.manifest.document), model.manifest.digest),
        model_folder.ATTESTATION: (Attestation, model.digest),
    }
    kind, digest = kinds[name]
    if canonical_json.sha256(envelope.payload) != digest:
        raise model_folder.changed(name)
    own = model.trust_root.each_key_counts("operator")
    check_signatures(
        envelope, own.verify(kind, envelope, role="operator", at=at, where=name), where=name
    )


def missing_signatures(trust: TrustState, envelope: bytes) -> int:
    """How many more keys of its operator have to sign an envelope; 0 if it has enough."""
    parsed = Envelope.parse(envelope)
    missing = [
        operator.threshold - len(by)
        for operator in trust.authorities
        if operator.role == "operator" and (by := parsed.signed_by(operator.keys))
    ]
    return max(0, min(missing, default=0))


def require_key(authority: Authority, key: PublicKey) -> None:
    """Refuse a key that is not of the authority that has signed."""
    if key not in authority.keys:
        raise Untrusted(
            f"the key {key.keyid[:12]}… is not of {authority.name}, which signed it",
            where="--key",
            do=f"Use another key of {authority.name}, as the trust root names them",
        )
