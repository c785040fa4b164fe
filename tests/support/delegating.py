"""A world whose operator is known by a delegation only."""

from __future__ import annotations

from typing import Any

from govray.governance.formats.keys import LocalSigner
from govray.governance.trust.authority import Authority, Delegation
from tests.support.people import Service
from tests.support.world import FAR, World

DSSE = {"Content-Type": "application/vnd.dsse.envelope.v1+json"}


class Delegating(World):
    """A world whose operator lets ``night-shift`` sign for it."""

    def __init__(self) -> None:
        super().__init__()
        self.night = LocalSigner.generate()
        night = Authority(
            name="night-shift",
            role="operator",
            keys=(self.night.public_key,),
            threshold=1,
            expires=FAR,
        )
        signed = Delegation(delegator="operator", authority=night).seal([self.keys.operator])
        self.delegations = [*self.delegations, signed]


def uploaded(service: Service, kind: str, data: bytes) -> dict[str, Any]:
    """What a service says of an attestation that somebody sends it."""
    answer = service.client(kind, **DSSE).post("/v1/attestations:verify", content=data)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
