"""Signing, apart from reading: what was read of a run's folder, and then one key over it.

The signer knows the execution from the operator's records. It takes all else as claims, in one
bounded canonical document, for instance from a process that has no key. It signs two things and no
other: the tree head that the claims name, under the ledger of the claimed run, and the attestation.
Whether the claims hold is for `govray.verify`, over the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field

from govray.errors import Refused
from govray.governance.attestation import model_folder
from govray.governance.attestation.execution import Execution
from govray.governance.attestation.model_attestation import Attestation, Claims
from govray.governance.formats import canonical_json
from govray.governance.formats.bounds import ShortText
from govray.governance.formats.document import Digest, Document
from govray.governance.formats.dsse import sign_payload
from govray.governance.formats.keys import Signer
from govray.governance.formats.signed_note import sign_checkpoint
from govray.governance.formats.statement import Subject, statement_bytes
from govray.governance.record import ledger


class UnsignedModel(Document):
    """What a run's folder says, before anybody signs.

    Attributes:
        subjects: Model file → digest.
        commit: Digest of the manifest of the commit that the model is.
    """

    claims: Claims
    subjects: Annotated[dict[ShortText, Digest], Field(min_length=1)]
    commit: Digest

    @classmethod
    def read(cls, data: bytes, *, where: str) -> Self:
        """From canonical JSON of at most `canonical_json.MAX_BYTES`."""
        return cls.from_json(canonical_json.parse_canonical(data, where=where), where=where)


@dataclass(frozen=True, kw_only=True)
class HeadedModel:
    """A statement that is not signed yet, and the signed tree head that it pins.

    Attributes:
        payload: The statement's bytes (`govray.governance.formats.statement`).
        checkpoint: The signed head of the run's ledger.
    """

    attestation: Attestation
    payload: bytes
    checkpoint: bytes

    def signed(self, signers: Sequence[Signer]) -> Mapping[str, bytes]:
        """The two files that need a key, by their names in the model folder."""
        return {
            model_folder.ATTESTATION: sign_payload(self.payload, signers),
            model_folder.CHECKPOINT: self.checkpoint,
        }


def sign_head(found: UnsignedModel, execution: Execution, signer: Signer) -> HeadedModel:
    """Sign the claimed tree head, and complete the attestation that pins it.

    Raises:
        Refused: The claims are of another commit than the operator's records have, or name the
            ledger of another run.
    """
    claims = found.claims
    if execution.commit != found.commit:
        raise Refused("the operator's records have another commit", where=claims.run.id)
    if claims.ledger.origin != ledger.origin(claims.run.id):
        raise Refused("the ledger is another run's", where=claims.run.id)
    if model_folder.CHECKPOINT in claims.files:
        raise Refused("the claims pin a checkpoint that is not signed yet", where=claims.run.id)
    head = claims.ledger
    root = bytes.fromhex(head.root.removeprefix("sha256:"))
    checkpoint = sign_checkpoint(head.origin, head.size, root, signer)
    attestation = Attestation.of(claims, execution, canonical_json.sha256(checkpoint))
    subjects = [Subject.of(name, digest) for name, digest in sorted(found.subjects.items())]
    return HeadedModel(
        attestation=attestation,
        payload=statement_bytes(attestation, subjects),
        checkpoint=checkpoint,
    )
