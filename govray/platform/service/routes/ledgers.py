"""``/v1/ledgers/{run}``: checkpoint, tiles and proofs of a run's ledger (C2SP ``tlog-tiles``).

The address ``/v1/ledgers/{run}`` is the log's prefix. Hashes, proofs and the checkpoint are for
whoever may read anything of the run's attestation. Entries name the corpora of a step, so they are
for staff, and for who has a role in the run's project. A hash does not reveal a corpus. The leaf
under it holds the digest of the run's plan, which only readers of the whole attestation know.

Proofs are computed from tiles and checked against the signed root before they are sent. Tiles are
sent as they lie on storage; whoever reads them checks them, as the standard has it.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from govray.errors import CouldNotCheck, Malformed
from govray.governance.formats.bounds import Natural, Positive
from govray.governance.formats.dsse import encode_base64
from govray.platform.service.http.answer import Answer
from govray.platform.service.http.problems import Problem, not_allowed, not_found
from govray.platform.service.http.statuses import header, refusing
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.routes.attestations import IfNoneMatch, immutable
from govray.platform.service.visible.visible_models import find_ledger, reads_entries
from govray.platform.store.tables import LedgerRow
from govray.platform.store.tile_storage import tile_folder
from govray.platform.store.tiles import TileReader, parse_path

router = APIRouter(tags=["ledgers"])

RunPath = Annotated[str, Path(max_length=128, examples=["demo-20261121-204522-ec96b3d1"])]
Count = Annotated[Natural, Query()]

_NOTE = "text/plain; charset=utf-8"
_BYTES: dict[str, Any] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
}


class LedgerAnswer(Answer):
    """The signed head of a ledger. Check ``checkpoint`` with the operator's public key."""

    run: str
    origin: str = Field(examples=["govray.dev/ledger/demo-20261121-204522-ec96b3d1"])
    size: str = Field(description="Leaves, a decimal string.", examples=["255"])
    root: str = Field(examples=["sha256:" + "f9" * 32])
    checkpoint: str = Field(description="The signed note: c2sp.org/tlog-checkpoint.")
    tiles: bool = Field(description="Whether the tiles are on storage, so that proofs can be had.")


class InclusionProof(Answer):
    """That a leaf stands in the ledger: RFC 9162 section 2.1.3.

    Recompute the root of ``size`` from ``leafHash``, ``index`` and ``path``, and compare it with
    that of the signed checkpoint. A smaller size also needs a consistency proof.
    """

    index: str = Field(examples=["17"])
    size: str = Field(examples=["255"])
    leaf_hash: str = Field(description="Base64 of 32 bytes.")
    path: list[str] = Field(description="From the leaf upwards, base64 of 32 bytes each.")
    checkpoint: str


class ConsistencyProof(Answer):
    """That the ledger of ``first`` leaves begins that of ``second``: RFC 9162 section 2.1.4."""

    first: str
    first_root: str
    second: str
    second_root: str
    path: list[str]
    checkpoint: str


def reader(ledger: LedgerRow) -> TileReader:
    """A reader of a ledger's tiles. Raises `CouldNotCheck`: the tiles were never written."""
    if not ledger.tiles:
        raise CouldNotCheck(
            "the tiles of this ledger are not on storage",
            where=ledger.run,
            do="Write them with `govray store rebuild`",
        )
    root = bytes.fromhex(ledger.root.removeprefix("sha256:"))
    return TileReader(tile_folder(ledger.tiles), ledger.size, root)


@router.get("/ledgers/{run}")
def head(visit: VisitDep, run: RunPath) -> LedgerAnswer:
    """The signed head of a run's ledger."""
    ledger = find_ledger(visit.session, visit.caller, run)
    return LedgerAnswer(
        run=ledger.run,
        origin=ledger.origin,
        size=str(ledger.size),
        root=ledger.root,
        checkpoint=ledger.checkpoint.decode(),
        tiles=bool(ledger.tiles),
    )


@router.get(
    "/ledgers/{run}/checkpoint",
    response_class=Response,
    responses={200: {"content": {_NOTE: {"schema": {"type": "string"}}}}},
)
def checkpoint(visit: VisitDep, run: RunPath) -> Response:
    """The signed note itself, as it was signed."""
    ledger = find_ledger(visit.session, visit.caller, run)
    return Response(ledger.checkpoint, media_type=_NOTE, headers={"Cache-Control": "no-cache"})


@router.get(
    "/ledgers/{run}/tile/{path:path}",
    response_class=Response,
    responses={200: {"content": _BYTES, "headers": header("ETag")}, **refusing(304, 403)},
)
def tile(
    visit: VisitDep,
    run: RunPath,
    path: Annotated[str, Path(max_length=100, examples=["0/000.p/255", "entries/000.p/255"])],
    if_none_match: IfNoneMatch = None,
) -> Response:
    """A tile of hashes, or a bundle of entries, as it lies on storage. Bundles are for staff."""
    ledger = find_ledger(visit.session, visit.caller, run)
    try:
        name = parse_path(f"tile/{path}")
    except Malformed:
        raise not_found("tile", path, "See https://c2sp.org/tlog-tiles") from None
    if name.is_bundle:
        _check_entries(visit, run)
    data = tile_folder(ledger.tiles).read(name.path) if ledger.tiles else None
    if data is None:
        raise not_found("tile", path, "Ask for tiles of the checkpoint's size")
    return immutable(
        data,
        f"{run}/{path}",
        public=False,
        asked=if_none_match,
        media_type="application/octet-stream",
    )


@router.get(
    "/ledgers/{run}/entries/{index}",
    response_class=Response,
    responses={
        200: {"content": {"application/json": {"schema": {"type": "object"}}}},
        **refusing(403),
    },
)
def entry(visit: VisitDep, run: RunPath, index: Annotated[Natural, Path()]) -> Response:
    """One leaf, its exact bytes, checked against the signed root. For staff."""
    ledger = find_ledger(visit.session, visit.caller, run)
    _check_entries(visit, run)
    _check_index(index, ledger.size)
    return Response(reader(ledger).entry(index), media_type="application/json")


@router.get("/ledgers/{run}/proofs/inclusion")
def inclusion(
    visit: VisitDep, run: RunPath, index: Count, size: Annotated[Positive | None, Query()] = None
) -> InclusionProof:
    """That a leaf stands in the ledger of ``size`` leaves; by default that of the checkpoint."""
    ledger = find_ledger(visit.session, visit.caller, run)
    size = ledger.size if size is None else size
    _check_size(size, ledger.size)
    _check_index(index, size)
    return inclusion_of(ledger, reader(ledger), index, size)


def inclusion_of(ledger: LedgerRow, tiles: TileReader, index: int, size: int) -> InclusionProof:
    """The proof of one leaf, checked."""
    leaf, path = tiles.inclusion(index, size)
    return InclusionProof(
        index=str(index),
        size=str(size),
        leaf_hash=encode_base64(leaf),
        path=[encode_base64(each) for each in path],
        checkpoint=ledger.checkpoint.decode(),
    )


@router.get("/ledgers/{run}/proofs/consistency")
def consistency(
    visit: VisitDep,
    run: RunPath,
    first: Annotated[Positive, Query()],
    second: Annotated[Positive | None, Query()] = None,
) -> ConsistencyProof:
    """That an earlier state of the ledger is a beginning of a later one."""
    ledger = find_ledger(visit.session, visit.caller, run)
    second = ledger.size if second is None else second
    _check_size(second, ledger.size)
    _check_size(first, second)
    tiles = reader(ledger)
    path = tiles.consistency_proof(first, second)
    return ConsistencyProof(
        first=str(first),
        first_root=encode_base64(tiles.root(first)),
        second=str(second),
        second_root=encode_base64(tiles.root(second)),
        path=[encode_base64(each) for each in path],
        checkpoint=ledger.checkpoint.decode(),
    )


def _check_entries(visit: Visit, run: str) -> None:
    """Entries name all corpora of a step. Raises 403."""
    if not reads_entries(visit.session, visit.caller, run):
        raise not_allowed(
            "Entries of a ledger are for admin, engineer and auditor, and for roles in its project",
            "Ask for hashes and proofs instead",
        )


def _check_index(index: int, size: int) -> None:
    if index >= size:
        raise Problem(404, "Not found", f"The ledger of {size} leaves has no leaf {index}")


def _check_size(size: int, largest: int) -> None:
    if size > largest:
        raise Problem(404, "Not found", f"{size} leaves are more than {largest}, which are signed")
