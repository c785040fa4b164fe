"""A world whose trust root names a beacon, which chooses the reserve."""

from __future__ import annotations

from typing import Any

from govray.governance.formats.keys import LocalSigner
from govray.governance.record.prepare_manifest import Reserve
from govray.governance.trust.beacon import Beacon, Pulse, UsedPulse
from tests.support.world import World

ISSUED = {"alpha": "2026-11-03T10:30:00Z"}
"""The latest; all others' are older."""

DUE = 84
"""Rounds are due every hour of November. Eighty-three are, once a day has passed since `ISSUED`:
2026-11-04T11:00:00Z is the first hour after it."""


def beacon_of(signer: LocalSigner, **changes: Any) -> Beacon:
    fields = {"name": "bell", "genesis": "2026-11-01T00:00:00Z", "period": 3600, "delay": 86_400}
    return Beacon(**{**fields, "key": signer.public_key, **changes})


def pulse_of(signer: LocalSigner, number: int, beacon: str = "bell") -> bytes:
    return Pulse(beacon=beacon, round=number).seal([signer])


def reserve_of(pulse: bytes, share: float = 0.25) -> Reserve:
    used = UsedPulse.read(pulse, where="pulse")
    return Reserve(share=share, salt=used.salt, pulse=used)


class Beaconed(World):
    """Every credential has a time of issue, and the reserve follows from the pulse after them."""

    def __init__(self) -> None:
        self.bell = LocalSigner.generate()
        super().__init__()
        self.reserve = reserve_of(pulse_of(self.bell, DUE))  # type: ignore[misc]

    def sign_root(self, **changes: Any) -> bytes:
        return super().sign_root(**{"beacon": beacon_of(self.bell), **changes})

    def issue(self, corpus: str, **changes: Any) -> bytes:
        issued = ISSUED.get(corpus, "2026-10-20T00:00:00Z")
        return super().issue(corpus, **{"issued": issued, **changes})
