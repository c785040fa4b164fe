"""A beacon: somebody who signs a number at stated times, so that nobody chooses a reserve's salt.

A beacon signs round after round. What it signs for a round is its **pulse**: a statement of the
beacon's name and the round, in an envelope as every other document. Round 1 is due at ``genesis``,
the next ones each a ``period`` later. The pulse's value is the SHA-256 of its signature, which
nobody knows before.

The round that a preparation has to use follows from its credentials. It is the first that is due
after the latest of their times of issue and the ``delay``. So preparation has nothing to choose::

    salt  =  SHA-256(canonical JSON {"beacon", "round", "value"})

Invariants

* **One salt for each round.** The credentials decide about the round and are not in the salt.
  Otherwise each choice of corpora would be another draw. Leaving out those with the latest times
  leads to an earlier round, so there are at most as many salts as times of issue.
* **One signature for each round**, as far as the beacon keeps to RFC 8032: Ed25519 alone, since
  ECDSA draws a number for every signature. A beacon that doesn't keep to it can choose; so it has
  to be somebody who gains nothing by that.
* The salt is public from the pulse on. A supplier who signs after it, and states an earlier time,
  can aim. A verifier cannot see that. So preparation refuses credentials that it did not have
  before the pulse was due (``data/admission.py``).

No private part is mixed in. It would have to be committed in the trust root, and the first manifest
would show it to the suppliers of all later ones.

The format is govray's own. The pulses of drand are BLS signatures, which the base install cannot
check. Those of NIST are RSA signatures over some twenty fields, by keys that change. Nothing here
fetches a pulse: it comes as a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Self

from pydantic import Field, field_validator

from govray.errors import Refused, Untrusted
from govray.governance.formats import canonical_json
from govray.governance.formats.bounds import Positive
from govray.governance.formats.document import Document, Name, Timestamp, format_time, parse_time
from govray.governance.formats.dsse import IN_TOTO, Envelope, pae
from govray.governance.formats.keys import PublicKey
from govray.governance.formats.statement import Signed, read, statement_bytes
from govray.governance.trust.key_field import Key

SCHEMA = "govray.dev/pulse/v1"

Seconds = Annotated[int, Field(ge=1, le=366 * 24 * 3600)]


class Pulse(Signed):
    """What a beacon signs for a round, and nothing else."""

    PREDICATE_TYPE: ClassVar[str] = f"https://{SCHEMA}"
    NAMED_BY: ClassVar[str] = "beacon"

    beacon: Name
    round: Positive


class UsedPulse(Document):
    """The pulse that a reserve's salt follows from. ``signature``: in hex; the rest of the
    envelope follows."""

    beacon: Name
    round: Positive
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]

    @classmethod
    def read(cls, data: bytes, *, where: str) -> Self:
        """Of an envelope that one key signed; whose it is is not looked at here."""
        envelope = Envelope.parse(data, where=where)
        pulse = read(Pulse, envelope, where=where).document
        found = envelope.signatures[0].sig
        if len(envelope.signatures) > 1 or len(found) != 64:
            raise Untrusted(
                "a pulse has one signature, by Ed25519", where=where, do="Get the beacon's own file"
            )
        return cls(beacon=pulse.beacon, round=pulse.round, signature=found.hex())

    @property
    def signed(self) -> bytes:
        """The bytes that the signature is over."""
        pulse = Pulse(beacon=self.beacon, round=self.round)
        return pae(IN_TOTO, statement_bytes(pulse, pulse.subjects))

    @property
    def salt(self) -> str:
        """The reserve's salt, 64 hex digits."""
        value = hashlib.sha256(bytes.fromhex(self.signature)).hexdigest()
        drawn = {"beacon": self.beacon, "round": self.round, "value": value}
        return canonical_json.sha256(canonical_json.encode(drawn)).removeprefix("sha256:")

    def __str__(self) -> str:
        return f"beacon {self.beacon}, round {self.round}"


class Beacon(Document):
    """The beacon of a trust root.

    Attributes:
        name: Its pulses state it.
        key: Its Ed25519 key, which nothing else uses.
        genesis: When round 1 is due.
        period: Seconds from one round to the next.
        delay: Seconds that lie at least between a credential's issue and the pulse. In these it
            has to reach whoever prepares.
    """

    name: Name
    key: Key
    genesis: Timestamp
    period: Seconds
    delay: Seconds

    @field_validator("key")
    @classmethod
    def _ed25519(cls, key: PublicKey) -> PublicKey:
        if key.algorithm != "ed25519":
            raise ValueError("a beacon signs with Ed25519, which has one signature for each round")
        return key

    def due(self, number: int) -> datetime:
        """When a round is due."""
        return parse_time(self.genesis) + (number - 1) * timedelta(seconds=self.period)

    def round_for(self, issued: Mapping[str, str | None], *, at: datetime) -> int:
        """The round that decides over corpora.

        Args:
            issued: Corpus → the time of issue that its credential states.
            at: Reference time; nothing was issued later.

        Raises:
            Refused: A credential states no time, or a later one.
        """
        begin, number = parse_time(self.genesis), 1
        for corpus, stated in sorted(issued.items()):
            where = f"credential of corpus {corpus!r}"
            if stated is None:
                raise Refused(
                    "it states no time of issue, so no pulse is known to be later",
                    where=where,
                    do="Its issuer writes 'issued' into the credential and signs it again",
                )
            if (time := parse_time(stated)) > at:
                raise Refused(
                    f"issued at {stated}, after {format_time(at)}",
                    where=where,
                    do="Check the clocks of its issuer and of this machine",
                )
            passed = time + timedelta(seconds=self.delay) - begin
            number = max(number, passed // timedelta(seconds=self.period) + 2)
        return number

    def check(
        self, pulse: UsedPulse, issued: Mapping[str, str | None], *, at: datetime, where: str
    ) -> None:
        """Return if this is the pulse that decides over corpora.

        Args:
            issued: As for `round_for`.
            at: When the salt was used: no earlier than the pulse was due.

        Raises:
            Refused: Another round or beacon, or a pulse before its time.
            Untrusted: Another key signed it.
        """
        number = self.round_for(issued, at=at)
        if (pulse.beacon, pulse.round) != (self.name, number):
            raise Refused(
                f"the reserve follows {pulse}; the credentials lead to beacon {self.name}, "
                f"round {number}",
                where=where,
                do="Prepare again with the pulse of that round",
            )
        if self.due(number) > at:
            raise Refused(
                f"round {number} is due at {format_time(self.due(number))}, "
                f"after {format_time(at)}",
                where=where,
                do="Nobody can have that pulse yet: ask the beacon",
            )
        try:
            self.key.verify(pulse.signed, bytes.fromhex(pulse.signature))
        except Untrusted:
            raise Untrusted(
                f"the pulse is not signed by the key of the beacon {self.name}",
                where=where,
                do="Get the pulse from the beacon that the trust root names",
            ) from None
