"""Signed tree heads of one run that come from different places: does one extend the other?

A fork is two signed heads of one run of which neither begins the other. Its signer has two
histories of the run, and can show each reader another one. No folder shows it by itself. Two heads
do, where both are seen, and they are the evidence: both are signed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from govray.errors import CouldNotCheck, Refused
from govray.governance.attestation import model_folder
from govray.governance.formats.keys import PublicKey
from govray.governance.formats.signed_note import TreeHead, verify_checkpoint
from govray.governance.record.ledger import Ledger
from govray.governance.trust.trust_state import TrustState


def check_heads(
    trust: TrustState, ledger: Ledger, heads: Sequence[tuple[str, bytes]]
) -> tuple[TreeHead, ...]:
    """The heads in ``heads``, each of which ``ledger`` extends or has.

    Args:
        trust: An operator's key of it signed each head.
        heads: Name, for errors, and signed note of each.

    Raises:
        Refused: Not signed by an operator, of another run, or the two are a fork.
        CouldNotCheck: A head is of more leaves than the ledger has.
    """
    found = []
    for name, data in heads:
        head = read_head(trust, data, ledger.origin, where=name)
        check_extends(ledger, head, where=name)
        found.append(head)
    return tuple(found)


def read_head(trust: TrustState, data: bytes, origin: str, *, where: str) -> TreeHead:
    """The head that some operator's key of ``trust`` signed for ``origin``."""
    refusals: list[Refused] = []
    for key in _operator_keys(trust):
        try:
            return verify_checkpoint(data, key, origin=origin)
        except Refused as error:
            refusals.append(error)
    if not refusals:
        raise Refused("the trust root has no operator", where=where)
    raise Refused(refusals[0].what, where=where, do=refusals[0].do)


def check_extends(ledger: Ledger, head: TreeHead, *, where: str) -> None:
    """Return if the ledger's first leaves are those of ``head``.

    Raises:
        Refused: They are not: a fork.
        CouldNotCheck: The head is of more leaves.
    """
    if head.size > ledger.size:
        raise CouldNotCheck(
            f"the head is of {head.size} leaves, the ledger has {ledger.size}",
            where=where,
            do=f"Verify the model folder of that head, with --also and {model_folder.CHECKPOINT} "
            "of this one",
        )
    if ledger.root_at(head.size) != head.root:
        raise fork(head.size, where=where)


def fork(size: int, *, where: str) -> Refused:
    """The refusal of a head of ``size`` leaves that the longer history does not begin with."""
    return Refused(
        f"a fork: a signed head of the same run has other leaves among its first {size}",
        where=where,
        do="Keep both heads, which show two histories of one run, and ask who signed them",
    )


def _operator_keys(trust: TrustState) -> Iterable[PublicKey]:
    for authority in trust.authorities:
        if authority.role == "operator":
            yield from authority.keys
