"""``/v1/records``: was this text used, in which corpora, steps and layers, with proofs.

A record is found by the SHA-256 of its exact bytes, nothing less: one changed byte is another
record. Where records are under commitments, the index has their leaves. The store's masked secrets
open those of the corpora that the caller may read. ``closed`` names the corpora without a secret or
without records in the store.
Records of confidential corpora are indexed by keyed hash, so the tables alone confirm no
guess. Here only staff and the corpus's own supplier find them. For everyone else the answer is that
of a record which is in no corpus, from the same query.

Absence is "not found in the recorded data". It does not say that a text was not used: data that was
never presented to govray, or in other bytes, is not found.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import ConfigDict, Field
from sqlalchemy import and_, or_, select
from sqlmodel import Session, col

from govray.errors import CouldNotCheck, InfrastructureFailed, Refused, UsageError
from govray.governance.policy.record_commitment import entry
from govray.service.access import AuditDep, Caller, CallerDep
from govray.service.answer import Answer
from govray.service.problems import Problem
from govray.service.routes.ledgers import InclusionProof, inclusion_of, reader
from govray.service.session import SessionDep
from govray.service.visibility import CORPUS_READERS, own_corpora, reads_entries, uses
from govray.store.ledger_search import leaves_of_step
from govray.store.record_key import KEY_BYTES, mask_secret, record_key
from govray.store.secret_fingerprint import key_of
from govray.store.tables import (
    AbsentRecords,
    Attestation,
    Corpus,
    CorpusUse,
    Coverage,
    Credential,
    Ledger,
    Record,
    RecordCommitment,
)

router = APIRouter(tags=["records"], dependencies=[CORPUS_READERS])

MAX_SIGHTINGS = 200
MAX_PROOFS = 16
_KEYS_AT_ONCE = 10_000  # SQLite takes 32,766 values in a statement, PostgreSQL 65,535
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


class Sighting(Answer):
    """One place where the record stands in one attested run."""

    corpus: str
    attestation: str
    name: str = Field(description="Of the run's model.")
    record: str = Field(description="Index in the corpus, in Merkle order.")
    planted: bool = Field(description="A canary of the operator, no record of the supplier.")
    split: Literal["train", "reserve", "empty"]
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
    sightings: list[Sighting]
    closed: list[str] = Field(
        default=[],
        description="Corpora that could not be searched: the store lacks their secrets, or the "
        "records of a model that was trained on them.",
    )
    more: bool = Field(description=f"Whether there are more than the {MAX_SIGHTINGS} listed.")


@router.get("/records/{sha256}")
def by_hash(
    sha256: Annotated[str, Path(pattern="^[0-9a-f]{64}$", examples=["7c" * 32])],
    request: Request,
    caller: CallerDep,
    session: SessionDep,
    audit: AuditDep,
    proofs: Proofs = 1,
) -> RecordAnswer:
    """Where the record with this SHA-256 stands."""
    return answer_of(request, session, caller, audit, sha256, proofs)


@router.post("/records:search")
def search(
    asked: AskedText | AskedBytes,
    request: Request,
    caller: CallerDep,
    session: SessionDep,
    audit: AuditDep,
    proofs: Proofs = 1,
) -> RecordAnswer:
    """Where the record with exactly this text, or these bytes, stands."""
    if isinstance(asked, AskedText):
        # A lone surrogate is in no text that UTF-8 can hold, and so in no record.
        data = asked.text.encode(errors="surrogatepass")
    else:
        data = b64decode(asked.content)
    digest = hashlib.sha256(data).hexdigest()
    return answer_of(request, session, caller, audit, digest, proofs)


def answer_of(
    request: Request,
    session: Session,
    caller: Caller,
    audit: AuditDep,
    sha256: str,
    proofs: int,
) -> RecordAnswer:
    """Where the record with this SHA-256 stands, as far as the caller may read.

    Raises:
        Problem: 503, the store's secret is missing.
    """
    key = _key(session, request.app.state.settings.store)
    leaves, closed = _leaves(session, caller, sha256, key)
    rows = session.execute(_statement(caller, sha256, leaves, key)).all()
    shown = rows[:MAX_SIGHTINGS]
    groups = _groups(session, [(row.Record.attestation, row.Record.corpus) for row in shown])
    sightings = [_sighting(session, caller, row, groups, proofs) for row in shown]
    for corpus in sorted({row.Record.corpus for row in shown if row.confidential}):
        audit.read("record.read", corpus)
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


def _key(session: Session, store: str) -> bytes:
    """The store's secret.

    Raises:
        Problem: 503. It is missing or another one: a record that was used would not be found.
    """
    try:
        key = key_of(session, store)
    except (UsageError, Refused):
        raise Problem(
            503,
            "The store's secret is missing",
            "Records of confidential corpora cannot be found, so no answer is given",
            "Tell the operator: GOVRAY_STORE_KEY names the secret's file",
            headers={"Retry-After": "60"},
        ) from None
    # Before the first model there is nothing to find, and any key finds it.
    return key or bytes(KEY_BYTES)


def _leaves(
    session: Session, caller: Caller, sha256: str, key: bytes
) -> tuple[list[str], list[str]]:
    """The leaves that the record has in corpora under commitments, and what was not searched.

    Of all that the caller may read. Only leaves that are in the index are returned, so few.
    """
    commitments = session.execute(
        select(col(Credential.corpus), RecordCommitment)
        .join(RecordCommitment, col(RecordCommitment.credential) == col(Credential.digest))
        .join(Corpus, col(Corpus.name) == col(Credential.corpus))
        .where(own_corpora(caller))
    ).all()
    record = bytes.fromhex(sha256)
    by_key: dict[str, str] = {}
    for _, each in commitments:
        if each.secret is not None:
            leaf = entry(record, mask_secret(each.secret, each.commitment, key)).hex()
            by_key[leaf] = by_key[record_key(leaf, confidential=True, key=key)] = leaf
    there: set[str] = set()
    keys = list(by_key)
    column = col(Record.record_key)
    for at in range(0, len(keys), _KEYS_AT_ONCE):
        some = column.in_(keys[at : at + _KEYS_AT_ONCE])
        there.update(session.scalars(select(column).where(some).distinct()))
    closed = {corpus for corpus, each in commitments if each.secret is None}
    closed |= set(session.scalars(_absent(caller)))
    return sorted({by_key[each] for each in there}), sorted(closed)


def _absent(caller: Caller) -> Any:
    """Corpora of models whose records are not in the index."""
    return (
        select(col(CorpusUse.corpus))
        .join(AbsentRecords, col(AbsentRecords.attestation) == col(CorpusUse.attestation))
        .join(Corpus, col(Corpus.name) == col(CorpusUse.corpus))
        .where(own_corpora(caller), uses(caller))
        .distinct()
    )


def _statement(caller: Caller, sha256: str, leaves: list[str], key: bytes) -> Any:
    def keys(confidential: bool, entries: list[str]) -> list[str]:
        return [record_key(each, confidential=confidential, key=key) for each in entries]

    confidential = col(Corpus.confidential)
    found = col(Record.record_key)
    # A plain hash is the entry of canaries, and of records that are under no commitment.
    by_hash = or_(
        col(RecordCommitment.credential).is_(None), col(Record.record) >= col(Credential.records)
    )
    return (
        select(
            Record,
            confidential.label("confidential"),
            col(Attestation.name).label("name"),
            col(Attestation.run).label("run"),
            col(Credential.records).label("own_records"),
        )
        .join(Corpus, col(Corpus.name) == col(Record.corpus))
        .join(Attestation, col(Attestation.digest) == col(Record.attestation))
        .join(
            CorpusUse,
            and_(
                col(CorpusUse.attestation) == col(Record.attestation),
                col(CorpusUse.corpus) == col(Record.corpus),
            ),
        )
        .join(Credential, col(Credential.digest) == col(CorpusUse.credential))
        .outerjoin(RecordCommitment, col(RecordCommitment.credential) == col(Credential.digest))
        .where(
            found.in_(keys(True, [sha256, *leaves]) + keys(False, [sha256, *leaves])),
            or_(
                and_(found.in_(keys(True, [sha256])), confidential, by_hash),
                and_(found.in_(keys(False, [sha256])), ~confidential, by_hash),
                and_(found.in_(keys(True, leaves)), confidential, ~by_hash),
                and_(found.in_(keys(False, leaves)), ~confidential, ~by_hash),
            ),
            own_corpora(caller),
            uses(caller),
        )
        .order_by(
            col(Attestation.started).desc(),
            col(Record.attestation),
            col(Record.corpus),
            col(Record.record),
        )
        .limit(MAX_SIGHTINGS + 1)
    )


def _groups(session: Session, places: list[tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    """(Attestation, corpus) → the layer groups that its gradient updated."""
    found: dict[tuple[str, str], list[str]] = {}
    wanted = set(places)
    rows = session.execute(
        select(col(Coverage.attestation), col(Coverage.corpus), col(Coverage.layer_group)).where(
            col(Coverage.attestation).in_({each for each, _ in wanted}),
            col(Coverage.corpus).in_({each for _, each in wanted}),
            col(Coverage.direct),
            col(Coverage.tokens) > 0,
        )
    )
    for attestation, corpus, group in rows:
        found.setdefault((attestation, corpus), []).append(group)
    return {place: sorted(groups) for place, groups in found.items()}


def _sighting(
    session: Session,
    caller: Caller,
    row: Any,
    groups: dict[tuple[str, str], list[str]],
    proofs: int,
) -> Sighting:
    record: Record = row.Record
    proven, missing = _proofs(session, caller, row.run, record, proofs)
    return Sighting(
        corpus=record.corpus,
        attestation=record.attestation,
        name=row.name,
        record=str(record.record),
        planted=record.record >= row.own_records,
        split=record.split,
        tokens=str(record.tokens),
        step_count=record.step_count,
        steps=record.steps,
        groups=groups.get((record.attestation, record.corpus), []) if record.steps else [],
        proofs=proven,
        no_proof=missing,
    )


def _proofs(
    session: Session, caller: Caller, run: str, record: Record, most: int
) -> tuple[list[StepProof], str | None]:
    steps = record.steps[:most]
    if not steps:
        return [], None
    ledger = session.get(Ledger, run)
    if ledger is None or not ledger.tiles:
        return [], "The tiles of the run's ledger are not on storage."
    found: list[StepProof] = []
    entries = reads_entries(session, caller, run)
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
