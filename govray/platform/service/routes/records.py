"""``/v1/records``: was this text used, in which corpora, steps and layers, with proofs.

A record is found by the SHA-256 of its exact bytes, nothing less: one changed byte is another
record. The index has the records' leaves. The store's masked secrets open those of the corpora that
the caller may read. ``closed`` names the corpora without a secret or without records in the store.
The tables alone confirm no guess. Here only staff and a corpus's own supplier find its records. For
everyone else the answer is that of a record which is in no corpus, from the same query.

Absence is "not found in the recorded data". It does not say that a text was not used: data that was
never presented to govray, or in other bytes, is not found.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import ConfigDict, Field

from govray.errors import CouldNotCheck, Damaged, InfrastructureFailed, Refused
from govray.governance.formats import canonical_json
from govray.governance.verify.trace import outcome
from govray.platform.service.http.answer import Answer
from govray.platform.service.http.statuses import ANY_NAME
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.audit_log import LOGGED
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.routes.ledgers import InclusionProof, inclusion_of, reader
from govray.platform.service.visible.record_index import groups_of, leaves_of, places_of, store_key
from govray.platform.service.visible.visible_models import reads_entries
from govray.platform.store.tables import LedgerRow, Record
from govray.platform.store.tiles import TileReader

MAX_BRANCHES = 64
"""More rollbacks than this are not looked through."""


def leaves_of_step(
    tiles: TileReader, step: int, *, corpus: str
) -> Iterator[tuple[int, int, bytes]]:
    """The leaves of a step that used a corpus, one a branch at most.

    Args:
        corpus: Leaves that a gate kept it out of are passed over.

    Yields:
        Index in the ledger, branch, and the leaf's bytes, checked against the signed root.

    Raises:
        Damaged: An entry is no leaf, or not the one that was signed.
    """
    if tiles.size == 0:
        return
    last = _place(tiles.unchecked_entry(tiles.size - 1))[0]
    for branch in range(min(last + 1, MAX_BRANCHES)):
        index = _first_at(tiles, (branch, step))
        if index is None:
            continue
        line = tiles.entry(index)
        if corpus in _parsed(line).get("corpora", {}):
            yield index, branch, line


def _first_at(tiles: TileReader, place: tuple[int, int]) -> int | None:
    """The first entry of (branch, step): the step's leaf."""
    low, high = 0, tiles.size
    while low < high:
        middle = (low + high) // 2
        if _place(tiles.unchecked_entry(middle)) < place:
            low = middle + 1
        else:
            high = middle
    if low < tiles.size and _place(tiles.unchecked_entry(low)) == place:
        return low
    return None


def _place(line: bytes) -> tuple[int, int]:
    value = _parsed(line)
    branch, step = value.get("branch"), value.get("step")
    if not isinstance(branch, int) or not isinstance(step, int):
        raise Damaged("an entry is no leaf of a ledger", where="ledger")
    return branch, step


def _parsed(line: bytes) -> dict[str, Any]:
    value = canonical_json.parse(line, where="ledger entry")
    if not isinstance(value, dict):
        raise Damaged("an entry is no leaf of a ledger", where="ledger")
    return value


router = APIRouter(tags=["records"], dependencies=[needs("data")])

MAX_SIGHTINGS = 200
MAX_PROOFS = 16
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
NOT_FOUND = "Not found in the recorded data."
LIMITS = (
    "Exact bytes only. Data that was never presented to govray, or that was presented in other "
    "bytes, would not be found."
)

Proofs = Annotated[
    int,
    Query(ge=0, le=MAX_PROOFS, description="Steps of each sighting to add a proof for."),
]


class AskedText(Answer):
    """The record as text. It is hashed and neither stored nor logged."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=8_000_000)] = Field(
        description="Encoded as UTF-8.", examples=["def main():\n    pass\n"]
    )


class AskedBytes(Answer):
    """The record as bytes. They are hashed and neither stored nor logged."""

    model_config = ConfigDict(extra="forbid")

    content: Annotated[str, Field(max_length=12_000_000, pattern=_BASE64)] = Field(
        description="The bytes, in base64.", examples=["ZGVmIG1haW4oKToK"]
    )


class StepProof(InclusionProof):
    """The leaf of a step that read the record, and its proof.

    ``leaf`` is the leaf's JSON, whose hash with a zero byte before it is ``leafHash``. It names all
    corpora of the step, so it is for staff.
    """

    run: str
    branch: int
    step: int
    leaf: str | None = None


class RecordSighting(Answer):
    """One place where the record stands in one attested run."""

    corpus: str
    attestation: str
    name: str = Field(description="Of the run's model.")
    record: str = Field(description="Index in the corpus, in Merkle order.")
    planted: bool = Field(description="A canary of the operator, no record of the supplier.")
    split: Literal["train", "reserve", "empty"]
    use: str = Field(description="What became of it, for people.", examples=["trained on"])
    tokens: str = Field(description="Its own tokens in the rows that were read.")
    step_count: int
    steps: list[int] = Field(description="The first of them, ascending.")
    groups: list[str] = Field(description="Layer groups that these steps' gradients updated.")
    proofs: list[StepProof]
    no_proof: str | None = Field(default=None, description="Why there are fewer proofs than asked.")


class RecordAnswer(Answer):
    """Where a record stands in the recorded data that you may read."""

    sha256: str = Field(examples=["7c" * 32])
    found: bool
    meaning: str = Field(examples=[NOT_FOUND])
    limits: str = LIMITS
    sightings: list[RecordSighting]
    closed: list[str] = Field(
        default=[],
        description="Corpora that could not be searched: the store lacks their secrets, or the "
        "records of a model that was trained on them.",
    )
    more: bool = Field(description=f"Whether there are more than the {MAX_SIGHTINGS} listed.")


@router.get("/records/{sha256}", dependencies=[ANY_NAME])
def by_hash(
    visit: VisitDep,
    sha256: Annotated[str, Path(pattern="^[0-9a-f]{64}$", examples=["7c" * 32])],
    proofs: Proofs = 1,
) -> RecordAnswer:
    """Where the record with this SHA-256 stands."""
    return answer_of(visit, sha256, proofs)


@router.post("/records:search")
def search(visit: VisitDep, asked: AskedText | AskedBytes, proofs: Proofs = 1) -> RecordAnswer:
    """Where the record with exactly this text, or these bytes, stands."""
    if isinstance(asked, AskedText):
        # A lone surrogate is in no text that UTF-8 can hold, and so in no record.
        data = asked.text.encode(errors="surrogatepass")
    else:
        data = b64decode(asked.content)
    digest = hashlib.sha256(data).hexdigest()
    return answer_of(visit, digest, proofs)


def answer_of(visit: Visit, sha256: str, proofs: int) -> RecordAnswer:
    """Where the record with this SHA-256 stands, as far as the caller may read."""
    key = store_key(visit.session, visit.request.app.state.settings.store)
    leaves, closed = leaves_of(visit.session, visit.caller, sha256, key)
    rows = visit.session.execute(places_of(visit.caller, sha256, leaves, most=MAX_SIGHTINGS)).all()
    shown = rows[:MAX_SIGHTINGS]
    groups = groups_of(
        visit.session, [(row.Record.attestation, row.Record.corpus) for row in shown]
    )
    sightings = [_sighting(visit, row, groups, proofs) for row in shown]
    for corpus in sorted({row.Record.corpus for row in shown if row.sensitivity in LOGGED}):
        visit.audit.read("record.read", corpus)
    places = len({row.Record.corpus for row in shown})
    return RecordAnswer(
        sha256=sha256,
        found=bool(sightings),
        meaning=f"Found in {places} {'corpus' if places == 1 else 'corpora'}."
        if sightings
        else NOT_FOUND,
        sightings=sightings,
        closed=closed,
        more=len(rows) > MAX_SIGHTINGS,
    )


def _sighting(
    visit: Visit, row: Any, groups: dict[tuple[str, str], list[str]], proofs: int
) -> RecordSighting:
    record: Record = row.Record
    proven, missing = _proofs(visit, row.run, record, proofs)
    return RecordSighting(
        **record.model_dump(include={"corpus", "attestation", "split", "step_count", "steps"}),
        name=row.name,
        record=str(record.record),
        planted=record.record >= row.own_records,
        use=outcome(record.split, record.step_count),
        tokens=str(record.tokens),
        groups=groups.get((record.attestation, record.corpus), []) if record.steps else [],
        proofs=proven,
        no_proof=missing,
    )


def _proofs(
    visit: Visit, run: str, record: Record, most: int
) -> tuple[list[StepProof], str | None]:
    steps = record.steps[:most]
    if not steps:
        return [], None
    ledger = visit.session.get(LedgerRow, run)
    if ledger is None or not ledger.tiles:
        return [], "The tiles of the run's ledger are not on storage."
    found: list[StepProof] = []
    entries = reads_entries(visit.session, visit.caller, run)
    try:
        tiles = reader(ledger)
        for step in steps:
            for index, branch, line in leaves_of_step(tiles, step, corpus=record.corpus):
                proof = inclusion_of(ledger, tiles, index, ledger.size)
                found.append(
                    StepProof(
                        **proof.model_dump(),
                        run=run,
                        branch=branch,
                        step=step,
                        leaf=line.decode() if entries else None,
                    )
                )
    # The answer stands without them; that they cannot be had is said, and nothing is guessed.
    except Refused:
        return [], "The tiles on storage do not lead to the signed checkpoint."
    except (CouldNotCheck, InfrastructureFailed):
        return [], "The tiles of the run's ledger cannot be read now."
    return found, None
