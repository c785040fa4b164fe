"""Which witnesses' cosignatures count, and how many of them make a ledger's head witnessed.

These witnesses see heads of ledgers and nothing of a run. They are others than the authorities of
the role ``witness``, who replay runs.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from govray.governance.formats.bounds import Positive
from govray.governance.formats.document import Document
from govray.governance.formats.keys import PublicKey
from govray.governance.trust.key_field import Key

MAX_WITNESSES = 15
"""A note is read with 16 signatures at most, and the log's own is one."""

WitnessName = Annotated[str, StringConstraints(pattern=r"^[!-*,-~]{1,255}$")]
"""Printable ASCII without spaces and plus signs; a URL without its scheme by custom."""


class LedgerWitness(Document):
    """One witness of C2SP's tlog-witness.

    Attributes:
        name: The name under which it cosigns, such as ``witness.example/w1``.
        key: Its Ed25519 key, which nothing else uses: a cosignature does not commit to the name.
    """

    name: WitnessName
    key: Key

    @field_validator("key")
    @classmethod
    def _ed25519(cls, key: PublicKey) -> PublicKey:
        if key.algorithm != "ed25519":
            raise ValueError("a ledger witness cosigns with Ed25519")
        return key


class WitnessPolicy(Document):
    """Who has to have seen a ledger's head.

    Attributes:
        threshold: How many of the witnesses, in ``[1, len(witnesses)]``.
        witnesses: With distinct names and keys.
    """

    threshold: Positive
    witnesses: Annotated[tuple[LedgerWitness, ...], Field(min_length=1, max_length=MAX_WITNESSES)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.threshold > len(self.witnesses):
            raise ValueError(
                f"the threshold {self.threshold} exceeds the number of witnesses, "
                f"{len(self.witnesses)}"
            )
        for named in ({w.name for w in self.witnesses}, {w.key for w in self.witnesses}):
            if len(named) < len(self.witnesses):
                raise ValueError("two witnesses share a name or a key")
        return self
