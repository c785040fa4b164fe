"""The index of records: in which corpora, runs and layers a record with some hash stands.

The index has the records' leaves, so the tables alone confirm no guess. The store's masked secrets
open those of the corpora that the caller may read.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, and_, or_, select, true
from sqlmodel import Session, col

from govray.errors import Refused, UsageError
from govray.governance.policy.record_commitment import entry
from govray.platform.service.http.problems import Problem
from govray.platform.service.identity.access import Caller
from govray.platform.service.visible.visible_corpora import own_corpora, uses
from govray.platform.store.store_secret import KEY_BYTES, key_of, mask_secret
from govray.platform.store.tables import (
    AttestationRow,
    Corpus,
    CorpusUseRow,
    CoverageRow,
    CredentialRow,
    Record,
)

_KEYS_AT_ONCE = 10_000  # SQLite takes 32,766 values in a statement, PostgreSQL 65,535


def store_key(session: Session, store: str) -> bytes:
    """The store's secret. Raises 503: it is missing or another one: a record that was used would
    not be found."""
    try:
        key = key_of(session, store)
    except (UsageError, Refused):
        raise Problem(
            503,
            "The store's secret is missing",
            "Records cannot be found, so no answer is given",
            "Tell the operator: GOVRAY_STORE_KEY names the secret's file",
            headers={"Retry-After": "60"},
        ) from None
    # Before the first model there is nothing to find, and any key finds it.
    return key or bytes(KEY_BYTES)


def leaves_of(
    session: Session, caller: Caller, sha256: str, key: bytes
) -> tuple[list[str], list[str]]:
    """The leaves that the record has in corpora, and what was not searched. Of all that the caller
    may read. Only leaves that are in the index are returned, so few."""
    c = CredentialRow
    commitments = session.execute(
        select(col(c.corpus), col(c.commitment), col(c.secret))
        .join(Corpus, col(Corpus.name) == col(c.corpus))
        .where(own_corpora(caller))
    ).all()
    record = bytes.fromhex(sha256)
    keys = [
        entry(record, mask_secret(each.secret, each.commitment, key)).hex()
        for each in commitments
        if each.secret is not None
    ]
    there: set[str] = set()
    column = col(Record.record_key)
    for at in range(0, len(keys), _KEYS_AT_ONCE):
        some = column.in_(keys[at : at + _KEYS_AT_ONCE])
        there.update(session.scalars(select(column).where(some).distinct()))
    closed = {each.corpus for each in commitments if each.secret is None}
    closed |= set(session.scalars(_absent(caller)))
    return sorted(there), sorted(closed)


def _absent(caller: Caller) -> Any:
    """Corpora of models whose records are not in the index."""
    return (
        select(col(CorpusUseRow.corpus))
        .join(AttestationRow, col(AttestationRow.digest) == col(CorpusUseRow.attestation))
        .join(Corpus, col(Corpus.name) == col(CorpusUseRow.corpus))
        .where(col(AttestationRow.has_records).is_(False), own_corpora(caller), uses(caller))
        .distinct()
    )


def places_of(
    caller: Caller,
    sha256: str,
    leaves: list[str],
    *,
    most: int,
    attestations: ColumnElement[bool] | None = None,
) -> Any:
    """The query for where a record stands, newest run first: at most ``most`` and one more.

    Args:
        leaves: Those that it has in corpora, from `leaves_of`.
        attestations: Condition on `AttestationRow`: only in these.

    A row has ``Record``, ``sensitivity``, ``name`` and ``run`` of the model, and ``own_records``:
    records from that index on are canaries.
    """

    found = col(Record.record_key)
    # A plain hash is the entry of canaries.
    by_hash = col(Record.record) >= col(CredentialRow.records)
    return (
        select(
            Record,
            col(Corpus.sensitivity).label("sensitivity"),
            col(AttestationRow.name).label("name"),
            col(AttestationRow.run).label("run"),
            col(CredentialRow.records).label("own_records"),
        )
        .join(Corpus, col(Corpus.name) == col(Record.corpus))
        .join(AttestationRow, col(AttestationRow.digest) == col(Record.attestation))
        .join(
            CorpusUseRow,
            and_(
                col(CorpusUseRow.attestation) == col(Record.attestation),
                col(CorpusUseRow.corpus) == col(Record.corpus),
            ),
        )
        .join(CredentialRow, col(CredentialRow.digest) == col(CorpusUseRow.credential))
        .where(
            found.in_([sha256, *leaves]),
            or_(and_(found == sha256, by_hash), and_(found.in_(leaves), ~by_hash)),
            own_corpora(caller),
            uses(caller),
            true() if attestations is None else attestations,
        )
        .order_by(
            col(AttestationRow.started).desc(),
            col(Record.attestation),
            col(Record.corpus),
            col(Record.record),
        )
        .limit(most + 1)
    )


def groups_of(session: Session, places: list[tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    """(Attestation, corpus) → the layer groups that its gradient updated."""
    found: dict[tuple[str, str], list[str]] = {}
    wanted = set(places)
    rows = session.execute(
        select(
            col(CoverageRow.attestation), col(CoverageRow.corpus), col(CoverageRow.layer_group)
        ).where(
            col(CoverageRow.attestation).in_({each for each, _ in wanted}),
            col(CoverageRow.corpus).in_({each for _, each in wanted}),
            col(CoverageRow.direct),
            col(CoverageRow.tokens) > 0,
        )
    )
    for attestation, corpus, group in rows:
        found.setdefault((attestation, corpus), []).append(group)
    return {place: sorted(groups) for place, groups in found.items()}
