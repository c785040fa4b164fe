"""Asking a timestamp authority (RFC 3161, over HTTP as its section 3.4 says)."""

from __future__ import annotations

from collections.abc import Sequence

from rfc3161_client import HashAlgorithm, TimestampRequestBuilder

from govray.errors import Refused
from govray.governance.notary.timestamp import Timestamp, read_timestamp
from govray.governance.submission.http_exchange import check_url, post
from govray.governance.trust.timestamp_authority import TimestampAuthority

_QUERY, _REPLY = "application/timestamp-query", "application/timestamp-reply"


def ask_timestamp(
    url: str, message: bytes, authorities: Sequence[TimestampAuthority]
) -> tuple[bytes, Timestamp]:
    """A token over ``message``: the response's bytes, and what they say.

    The digest of ``message`` is sent, and nothing else of it.

    Args:
        authorities: Those of the trust root; the token has to be of one of them.

    Raises:
        Refused: It does not grant a token, or one that does not verify.
    """
    where = check_url(url, where="--tsa")
    request = (
        TimestampRequestBuilder()
        .data(message)
        .hash_algorithm(HashAlgorithm.SHA256)
        .nonce(nonce=True)
        .cert_request(cert_request=True)
        .build()
    )
    answer = post(url, request.as_bytes(), kind=_QUERY, where=where)
    if answer.status != 200 or answer.kind != _REPLY:
        raise Refused(
            f"the server answers {answer.status}, {answer.kind[:60] or 'no type'}: no timestamp",
            where=where,
            do="Check that the address is that of an authority of RFC 3161",
        )
    stamp = read_timestamp(authorities, answer.body, message, nonce=request.nonce, where=where)
    return answer.body, stamp
