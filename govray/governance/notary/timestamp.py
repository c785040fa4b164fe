"""Timestamps of RFC 3161 over an attestation's envelope: that it existed at a time.

The token covers the envelope's bytes, signatures included. So it shows that these were made by
then, and a further signature needs a new token. The chain of its certificates is judged at the time
that the token states, since authorities' certificates expire before models do.

A token cannot show that nothing existed earlier, nor that what the attestation states is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rfc3161_client import VerificationError, VerifierBuilder, decode_timestamp_response

from govray.errors import Malformed, Refused, Untrusted
from govray.governance.formats.document import format_time, parse_time
from govray.governance.trust.authority import TimestampAuthority
from govray.governance.trust.trust_state import TrustState

MAX_RESPONSE = 64 * 1024
"""Bytes; a token with its chain has some thousands."""


@dataclass(frozen=True)
class Timestamp:
    """A token that verifies. ``time``: what it states, aware, in UTC."""

    authority: str
    time: datetime

    def __str__(self) -> str:
        return f"{format_time(self.time)} by {self.authority}"


def read_timestamp(
    authorities: Sequence[TimestampAuthority],
    response: bytes,
    message: bytes,
    *,
    nonce: int | None = None,
    where: str,
) -> Timestamp:
    """The timestamp that one of ``authorities`` signed over ``message``.

    Args:
        response: A ``TimeStampResp`` in DER.
        nonce: That of the request, where one was just sent.

    Raises:
        Untrusted: Refused by its authority, over other bytes, or of none that counts.
    """
    if len(response) > MAX_RESPONSE:
        raise Malformed(f"larger than {MAX_RESPONSE} bytes", where=where)
    try:
        token = decode_timestamp_response(response)
        time = token.tst_info.gen_time.astimezone(UTC)
    except (ValueError, TypeError) as error:
        raise Malformed(
            "no timestamp response of RFC 3161 that was granted",
            where=where,
            do="Ask the authority again: govray model timestamp MODEL --tsa URL",
        ) from error
    said: list[str] = []
    for authority in authorities:
        builder = VerifierBuilder(roots=[each.x509 for each in authority.certificates], nonce=nonce)
        try:
            builder.build().verify_message(token, message)
        except (VerificationError, ValueError, TypeError) as error:
            said.append(f"{authority.name}: {str(error).splitlines()[0] if str(error) else error}")
        else:
            return Timestamp(authority.name, time)
    raise Untrusted(
        "the token is of no timestamp authority of the trust root over these bytes ("
        + ("; ".join(said) or "it names none")
        + ")",
        where=where,
        do="If the attestation was signed again since, ask anew: "
        "govray model timestamp MODEL --tsa URL. Else the root's owner has to name the authority",
    )


def check_timestamps(
    trust: TrustState,
    given: Sequence[tuple[str, bytes]],
    envelope: bytes,
    *,
    finished: str,
    at: datetime,
) -> tuple[Timestamp, ...]:
    """The verifier's fifteenth step; empty if there is no timestamp."""
    found = []
    for where, response in given:
        stamp = read_timestamp(
            trust.root.timestamp_authorities or (), response, envelope, where=where
        )
        if stamp.time > at:
            raise Refused(f"stamped at {stamp}, after the reference time", where=where)
        if stamp.time < parse_time(finished):
            raise Refused(
                f"stamped at {stamp}, before the run ended at {finished} as its operator states",
                where=where,
                do="One of the two clocks is wrong: ask the operator",
            )
        found.append(stamp)
    return tuple(sorted(found, key=lambda each: (each.time, each.authority)))
