"""Deployments whose operator has three keys, of which two must sign."""

from __future__ import annotations

from pathlib import Path

from govray.evidence.exports.verified_facts import VerifiedFacts
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.formats.keys import LocalSigner
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.trust.authority import Authority, TrustRoot
from govray.governance.verify.cosign import cosign_model
from tests.support.deployment import Deployment
from tests.support.world import AT, World


class Committee(World):
    """The operator has three keys, of which two must sign."""

    second, third = LocalSigner.generate(), LocalSigner.generate("ecdsa-p256")

    def authorities(self) -> tuple[Authority, ...]:
        return tuple(
            each.model_copy(
                update={
                    "keys": (*each.keys, self.second.public_key, self.third.public_key),
                    "threshold": 2,
                }
            )
            if each.role == "operator"
            else each
            for each in super().authorities()
        )

    def cosigned(self, folder: Path) -> Path:
        """The model folder that the first key made, signed by the other two."""
        self.deploy(folder, attestation=by_payload)
        for signer in (self.second, self.third):
            done = cosign_model(folder, signer, anchor=TrustAnchor(self.root), at=AT)
            for name, envelope in done.files.items():
                (folder / name).write_bytes(envelope)
        return folder

    def facts(self, folder: Path) -> VerifiedFacts:
        """Of a model folder under this deployment's root."""
        return VerifiedFacts.of(self.verify(folder))


def by_payload(attestation: Attestation) -> Attestation:
    """As `write_model` pins the manifest: by what all of its signers sign."""
    files = dict(attestation.files) | {model_folder.MANIFEST: attestation.manifest}
    return attestation.model_copy(update={"files": files})


class CommitteeDeployment(Deployment):
    """A deployment whose operator has three keys, of which two must sign."""

    def _root(self) -> TrustRoot:
        for name in ("second", "third"):
            self.signers[name] = LocalSigner.generate()
        keys = tuple(self.signers[name].public_key for name in ("operator", "second", "third"))
        root = super()._root()
        changed = tuple(
            each.model_copy(update={"keys": keys, "threshold": 2})
            if each.role == "operator"
            else each
            for each in root.authorities
        )
        return root.model_copy(update={"authorities": changed})
