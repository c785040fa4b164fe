"""Generated data for `benchmarks.service`: a store of any size.

Nothing here is signed. The service sends stored bytes unchanged, so only their size matters. None
of the queries reads a ledger, so there is none.

A folder is generated once and reused. It is renamed into place when it is whole, and its name has
its sizes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Table, insert
from sqlmodel import Session

from govray.governance.policy import record_commitment
from govray.platform.service.identity import tokens
from govray.platform.store import tables
from govray.platform.store.database import open_store
from govray.platform.store.store_secret import load_key, mask_secret

GROUPS = ("embedding", *(f"block.{n}" for n in range(10)), "final_norm", "head")
AT = "2026-11-21T12:00:00Z"

_FORM = 3
_BATCH = 20_000


@dataclass(frozen=True)
class Sizes:
    """How much there is of everything.

    Attributes:
        records: Indexed records, over all corpora.
        envelope: Bytes of one attestation.
    """

    models: int = 100
    corpora: int = 1_000
    records: int = 1_000_000
    envelope: int = 30_000

    @property
    def name(self) -> str:
        """Of the folder."""
        told = [self.models, self.corpora, self.records, self.envelope, _FORM]
        return "service-" + hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]


QUICK = Sizes(models=8, corpora=16, records=400, envelope=3_000)


@dataclass(frozen=True)
class Data:
    """A generated folder."""

    folder: Path
    sizes: Sizes

    @property
    def url(self) -> str:
        """The store's."""
        return f"sqlite:///{self.folder / 'store.db'}"

    def model(self, number: int) -> str:
        """The name of a model."""
        return f"model-{number}"

    def run(self, number: int) -> str:
        """The run of a model."""
        return f"run-{number}"

    def digest(self, number: int) -> str:
        """Of the attestation of a model."""
        return "sha256:" + hashlib.sha256(f"attestation {number}".encode()).hexdigest()

    def record(self, number: int) -> str:
        """The SHA-256 of a record."""
        return hashlib.sha256(f"record {number}".encode()).hexdigest()

    def corpora(self, number: int) -> list[str]:
        """The corpora that a model used."""
        return [f"corpus-{c}" for c in range(self.sizes.corpora) if c % self.sizes.models == number]

    def envelope(self, number: int) -> bytes:
        """Bytes in place of a signed attestation."""
        text = json.dumps({"payloadType": "benchmark", "payload": self.digest(number)})
        return text.encode().ljust(self.sizes.envelope)

    def lineage(self, number: int) -> bytes:
        """A document in place of a model's lineage."""
        rows = [
            {
                "corpus": corpus,
                "cells": [
                    {"group": group, "tokens": str(1000 * n + number), "direct": True, "level": 1}
                    for n, group in enumerate(GROUPS)
                ],
            }
            for corpus in self.corpora(number)
        ]
        return json.dumps({"attestation": self.digest(number), "corpora": rows}).encode()


def generated(folder: Path, sizes: Sizes) -> Data:
    """The data of these sizes below ``folder``, generated if missing."""
    data = Data(folder / sizes.name, sizes)
    if data.folder.is_dir():
        return data
    folder.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{sizes.name}.", dir=folder))
    try:
        _fill(Data(staged, sizes))
        staged.rename(data.folder)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    return data


def _fill(data: Data) -> None:
    """The store's rows."""
    sizes = data.sizes
    engine = open_store(data.url, create=True)
    zero = "sha256:" + 64 * "0"
    with Session(engine) as session:
        session.add(tables.TrustRootRow(digest=zero, name="benchmark", version=1, envelope=b""))
        session.add(
            tables.PolicyRow(digest=zero, name="benchmark", version=1, signer="none", envelope=b"")
        )
        session.flush()
        insert_rows(session, tables.Corpus, _corpora(sizes))
        insert_rows(session, tables.CredentialRow, _credentials(sizes, load_key(data.url)))
        insert_rows(
            session, tables.AttestationRow, (_attestation(data, n, zero) for n in _all(sizes))
        )
        insert_rows(session, tables.CorpusUseRow, _uses(data))
        insert_rows(session, tables.CoverageRow, _coverage(data))
        insert_rows(session, tables.Record, _records(data))
        session.commit()
    engine.dispose()


def new_token(url: str) -> str:
    """A token of an admin account made for this run."""
    engine = open_store(url)
    try:
        with Session(engine) as session:
            name = f"benchmark-{time.time_ns()}"
            text = tokens.new(
                session, name, role="admin", scopes=("read",), days=1, at=datetime.now(UTC)
            )
            session.commit()
            return text
    finally:
        engine.dispose()


def _all(sizes: Sizes) -> range:
    return range(sizes.models)


def insert_rows(session: Session, table: Any, rows: Iterator[dict[str, Any]]) -> None:
    target: Table = table.__table__
    done = 0
    while batch := list(islice(rows, _BATCH)):
        session.connection().execute(insert(target), batch)
        done += len(batch)
        if done % (10 * _BATCH) == 0:
            print(f"  {target.name}: {done:,}", file=sys.stderr, flush=True)


def _corpora(sizes: Sizes) -> Iterator[dict[str, Any]]:
    for n in range(sizes.corpora):
        yield {
            "name": f"corpus-{n}",
            "supplier": f"supplier-{n % 10}",
            "sensitivity": "public",
        }


def _credential(n: int) -> str:
    return "sha256:" + hashlib.sha256(f"credential {n}".encode()).hexdigest()


def _secret(corpus: int) -> bytes:
    return hashlib.sha256(f"secret of {corpus}".encode()).digest()


def _credentials(sizes: Sizes, key: bytes) -> Iterator[dict[str, Any]]:
    for n in range(sizes.corpora):
        stated = record_commitment.commitment(_secret(n))
        yield {
            "digest": _credential(n),
            "corpus": f"corpus-{n}",
            "supplier": f"supplier-{n % 10}",
            "license": "MIT",
            "category": "permissive",
            "jurisdiction": "ZZ",
            "sensitivity": "public",
            "valid_from": "2026-01-01T00:00:00Z",
            "valid_until": "2027-01-01T00:00:00Z",
            "records": sizes.records // sizes.corpora,
            "commitment": stated,
            "secret": mask_secret(_secret(n), stated, key),
            "envelope": b"{}",
        }


def _attestation(data: Data, n: int, zero: str) -> dict[str, Any]:
    envelope = data.envelope(n)
    return {
        "digest": data.digest(n),
        "run": data.run(n),
        "name": data.model(n),
        "signer": "none",
        "trust_root": zero,
        "policy": zero,
        "assurance": "selfAttested",
        "started": AT,
        "finished": AT,
        "public": n % 2 == 0,
        "folder": None,
        "isolation": "run",
        "metric": "loss",
        "goal": "min",
        "value": 2.0 + n / 1000,
        "validated_on": "held-out",
        "envelope_digest": "sha256:" + hashlib.sha256(envelope).hexdigest(),
        "envelope": envelope,
        "lineage": data.lineage(n),
    }


def _uses(data: Data) -> Iterator[dict[str, Any]]:
    for c in range(data.sizes.corpora):
        n = c % data.sizes.models
        yield {
            "corpus": f"corpus-{c}",
            "attestation": data.digest(n),
            "credential": _credential(c),
            "records": data.sizes.records // data.sizes.corpora,
            "rows": 1_000,
            "tokens": 1_000_000,
            "steps": 100,
            "first_step": 0,
            "last_step": 99,
        }


def _coverage(data: Data) -> Iterator[dict[str, Any]]:
    for c in range(data.sizes.corpora):
        for group in GROUPS:
            yield {
                "attestation": data.digest(c % data.sizes.models),
                "corpus": f"corpus-{c}",
                "layer_group": group,
                "category": "permissive",
                "tokens": 1_000_000,
                "norm_share": None,
                "direct": True,
                "transitive": True,
                "level": None,
            }


def _records(data: Data) -> Iterator[dict[str, Any]]:
    for number in range(data.sizes.records):
        c = number % data.sizes.corpora
        record = bytes.fromhex(data.record(number))
        yield {
            "record_key": record_commitment.entry(record, _secret(c)).hex(),
            "attestation": data.digest(c % data.sizes.models),
            "corpus": f"corpus-{c}",
            "record": number // data.sizes.corpora,
            "split": "train",
            "tokens": 100,
            "step_count": 2,
            "steps": [number % 90, number % 90 + 7],
        }
