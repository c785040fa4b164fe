"""Asking notaries: a witness to cosign a ledger's head, an authority for a timestamp.

Sources: C2SP tlog-witness, the client's side; RFC 3161, over HTTP as its section 3.4 says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from rfc3161_client import HashAlgorithm, TimestampRequestBuilder

from govray.errors import InfrastructureFailed, Malformed, Refused
from govray.governance.formats import merkle
from govray.governance.formats.signed_note import read_note
from govray.governance.notary.add_checkpoint import SIZE_TYPE, AddCheckpoint
from govray.governance.notary.cosignature import Cosignature, cosignature_of
from govray.governance.notary.timestamp import Timestamp, read_timestamp
from govray.governance.record.ledger import Ledger
from govray.governance.submission.http_exchange import HttpAnswer, check_url, post
from govray.governance.trust.authority import TimestampAuthority
from govray.governance.trust.witness_policy import LedgerWitness

MOST_TRIES = 3
"""The first learns what the witness knows. Another run of the same command may come between."""
CLOCK_SKEW = timedelta(minutes=5)
"""How far a witness's clock may be ahead of ours."""
_SIZE = re.compile(rb"(0|[1-9][0-9]{0,18})\n")


def ask_witness(
    url: str, witness: LedgerWitness, ledger: Ledger, checkpoint: bytes, *, at: datetime
) -> tuple[str, Cosignature]:
    """The witness's signature line over the head of ``ledger``, verified, and what it says.

    Args:
        url: The witness's submission prefix.
        ledger: All its lines, verified.
        checkpoint: The note of its head, signed by its operator.

    Raises:
        Refused: It declines. It has seen a longer ledger, or another history. Or what it returns is
            no cosignature of its.
    """
    where = f"witness {witness.name}"
    address = f"{check_url(url, where=where).rstrip('/')}/add-checkpoint"
    note, old = read_note(checkpoint), 0
    for _ in range(MOST_TRIES):
        request = AddCheckpoint(old, _proof(ledger, old), note, checkpoint)
        answer = post(address, request.body(), kind="application/octet-stream", where=where)
        if answer.status == 200:
            return _accepted(answer, checkpoint, witness, at, where)
        if answer.status != 409 or answer.kind != SIZE_TYPE:
            raise _declined(answer, where)
        known = _SIZE.fullmatch(answer.body)
        if known is None:
            raise Malformed("its answer to an old size is no size", where=where)
        if int(known[1]) > ledger.size:
            raise Refused(
                f"it has cosigned {int(known[1])} leaves of this ledger, and here are "
                f"{ledger.size}",
                where=where,
                do="This head is stale: ask for the model folder of the longer one",
            )
        if int(known[1]) == old == ledger.size:
            raise _fork(old, where)
        old = int(known[1])
    raise InfrastructureFailed(
        "it knows another head at every try", where=where, do="Try again when nobody else asks"
    )


def with_cosignature(note: bytes, witness: LedgerWitness, line: str) -> bytes:
    """``note`` with the witness's line, in place of an earlier one of its."""
    text, blank, lines = note.decode().rpartition("\n\n")
    others = [
        each for each in lines.splitlines(keepends=True) if each.split(" ")[1] != witness.name
    ]
    return (text + blank + "".join([*others, line])).encode()


def _proof(ledger: Ledger, old: int) -> tuple[bytes, ...]:
    if old == 0 or old == ledger.size:
        return ()
    lines = ledger.lines
    return merkle.consistency_path(
        old, ledger.size, lambda start, stop: merkle.root(lines[start:stop])
    )


def _accepted(
    answer: HttpAnswer, checkpoint: bytes, witness: LedgerWitness, at: datetime, where: str
) -> tuple[str, Cosignature]:
    note = read_note(checkpoint + answer.body)
    found = cosignature_of(note, witness)
    if found is None:
        raise Refused(
            "it returned no cosignature by the key that the trust root names",
            where=where,
            do="Check the address, and the witness's name and key in the trust root",
        )
    if found.time > at + CLOCK_SKEW:
        raise Refused(f"it cosigned {found}, which is in the future", where=where)
    lines = answer.body.decode().splitlines(keepends=True)
    own = [line for line in lines if line.split(" ")[1] == witness.name]
    return next(
        line for line in own if cosignature_of(read_note(checkpoint + line.encode()), witness)
    ), found


def _declined(answer: HttpAnswer, where: str) -> Refused:
    if answer.status == 422:
        return _fork(None, where)
    said = {
        400: "it does not understand the request",
        403: "it knows no key that signed this ledger's head",
        404: "it does not know this ledger",
    }.get(answer.status, f"it answers {answer.status}")
    do = {
        403: "Give the witness's operator the public key of the run's operator",
        404: "Ask the witness's operator to accept ledgers of this origin",
    }.get(answer.status, "Check the address of the witness")
    return Refused(said, where=where, do=do)


def _fork(size: int | None, where: str) -> Refused:
    leaves = f" of {size} leaves" if size else ""
    return Refused(
        f"a fork: it has cosigned a head{leaves} that this ledger does not begin with",
        where=where,
        do="Keep both heads, which show two histories of one run, and ask who signed them",
    )


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
