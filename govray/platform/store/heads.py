"""Every signed head of a ledger that this store has seen, and the refusal of a fork.

Two heads of one run of which neither begins the other show two histories:
`govray.governance.attestation.tree_heads` has what that means. A store sees many copies of a run's
model, so it keeps the head of each, for ever: a rebuild takes them along.

Invariant: of the heads of one run here, each begins every longer one.

Heads come from verified models: no signature is verified here.
"""

from __future__ import annotations

from sqlmodel import Session, col, select

from govray.errors import CouldNotCheck
from govray.governance.attestation.tree_heads import check_extends, fork
from govray.governance.formats.signed_note import TreeHead
from govray.governance.record.ledger import Ledger
from govray.platform.store import tables
from govray.platform.store.tile_storage import tile_folder
from govray.platform.store.tiles import TileReader


def check_known(session: Session, ledger: Ledger) -> bool:
    """Whether no head that was seen of this run is longer; each of them fits to ``ledger``.

    Raises:
        Refused: One does not: a fork.
        CouldNotCheck: A longer one was seen, and there are no tiles to compare with.
    """
    of_run = select(tables.Head).where(col(tables.Head.run) == ledger.run)
    seen = session.exec(of_run.order_by(col(tables.Head.size))).all()
    for head in seen:
        where = f"ledger of run {ledger.run}, a head of {head.size} leaves that was seen before"
        if head.size <= ledger.size:
            check_extends(ledger, TreeHead(ledger.origin, head.size, _root(head)), where=where)
        elif _tiles(session, head, where).root(ledger.size) != ledger.root:
            raise fork(ledger.size, where=where)
    return all(head.size <= ledger.size for head in seen)


def keep(session: Session, ledger: Ledger, checkpoint: bytes) -> None:
    """Keep the head of ``ledger``, which `check_known` has passed; the caller commits."""
    root = "sha256:" + ledger.root.hex()
    if session.get(tables.Head, (ledger.run, ledger.size, root)) is None:
        session.add(tables.Head(run=ledger.run, size=ledger.size, root=root, checkpoint=checkpoint))


def _root(head: tables.Head) -> bytes:
    return bytes.fromhex(head.root.removeprefix("sha256:"))


def _tiles(session: Session, head: tables.Head, where: str) -> TileReader:
    ledger = session.get(tables.Ledger, head.run)
    if ledger is None or not ledger.tiles:
        raise CouldNotCheck(
            "a longer head of this run was seen, and its tiles are not on storage",
            where=where,
            do="Index the run that it is of with `govray store index`, then this one",
        )
    return TileReader(tile_folder(ledger.tiles), head.size, _root(head))
