"""Generated data for `benchmarks.service`: a store and a ledger of any size.

Nothing here is signed. The service sends stored bytes unchanged, so only their size matters. The
ledger's tiles are real, and every proof from them leads to its root.

A folder is generated once and reused. It is renamed into place when it is whole, and its name has
its sizes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Table, insert
from sqlmodel import Session

from govray.governance.formats import merkle
from govray.governance.policy import record_commitment
from govray.platform.store import tables
from govray.platform.store.database import open_store
from govray.platform.store.store_secret import load_key, mask_secret
from govray.platform.store.tiles import HEIGHT, WIDTH, TileName, edge, encode_bundle

GROUPS = ("embedding", *(f"block.{n}" for n in range(10)), "final_norm", "head")
AT = "2026-11-21T12:00:00Z"

_FORM = 2
_BATCH = 20_000


@dataclass(frozen=True)
class Sizes:
    """How much there is of everything.

    Attributes:
        ledgers: Entries of each ledger, ascending. Each is a prefix of the largest.
        records: Indexed records, over all corpora.
        envelope: Bytes of one attestation.
    """

    models: int = 100
    corpora: int = 1_000
    ledgers: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    records: int = 1_000_000
    envelope: int = 30_000

    @property
    def name(self) -> str:
        """Of the folder."""
        told = [self.models, self.corpora, *self.ledgers, self.records, self.envelope, _FORM]
        return "service-" + hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]


QUICK = Sizes(models=8, corpora=16, ledgers=(100, 1_000), records=400, envelope=3_000)


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
        """The name of a model; its one version is 1.0.0."""
        return f"model-{number}"

    def run(self, number: int) -> str:
        """The run of a model. The first ones have the ledgers of `Sizes.ledgers`, in order."""
        return f"run-{number}"

    def digest(self, number: int) -> str:
        """Of the attestation of a model."""
        return "sha256:" + hashlib.sha256(f"attestation {number}".encode()).hexdigest()

    def size(self, number: int) -> int:
        """Of the ledger of a model's run."""
        return self.sizes.ledgers[number if number < len(self.sizes.ledgers) else 0]

    def root(self, size: int) -> bytes:
        """Of the ledger's first ``size`` entries."""
        return bytes.fromhex(json.loads((self.folder / "roots.json").read_text())[str(size)])

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


def entry(index: int) -> bytes:
    """One entry of the ledger."""
    return b'{"n":"%d"}' % index


def generated(folder: Path, sizes: Sizes) -> Data:
    """The data of these sizes below ``folder``, generated if missing."""
    data = Data(folder / sizes.name, sizes)
    if data.folder.is_dir():
        return data
    folder.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{sizes.name}.", dir=folder))
    try:
        roots = write_ledger(staged / "tiles", sizes.ledgers)
        told = {str(size): root.hex() for size, root in roots.items()}
        (staged / "roots.json").write_text(json.dumps(told))
        _fill(Data(staged, sizes), data.folder / "tiles")
        staged.rename(data.folder)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    return data


def write_ledger(folder: Path, sizes: Sequence[int]) -> dict[int, bytes]:
    """Write the tiles of a log, in the form of `govray.platform.store.tiles`, and the edge of every
    size.

    Returns:
        Size → root.
    """
    levels: list[list[bytes]] = [[]]
    counts = [0]
    roots: dict[int, bytes] = {}
    wanted = sorted(sizes)
    done = 0
    for size in wanted:
        while done < size:
            stop = min(size, (done // WIDTH + 1) * WIDTH)
            _append(folder, levels, counts, [entry(n) for n in range(done, stop)], done)
            done = stop
            if done % (WIDTH * 4096) == 0:
                print(f"  ledger: {done:,} of {wanted[-1]:,}", file=sys.stderr, flush=True)
        if size % WIDTH:
            entries = [entry(n) for n in range(size - size % WIDTH, size)]
            level, data = encode_bundle(entries)
            _put(folder, TileName(level, size // WIDTH, len(entries)), data)
        for name in edge(size):
            assert isinstance(name.level, int)
            _put(folder, name, b"".join(levels[name.level]))
        roots[size] = _root(levels)
    return roots


def _append(
    folder: Path, levels: list[list[bytes]], counts: list[int], entries: list[bytes], start: int
) -> None:
    """Add entries that end in the tile of ``start`` or fill it."""
    levels[0] += [hashlib.sha256(b"\0" + each).digest() for each in entries]
    if len(levels[0]) < WIDTH:
        return
    index = start // WIDTH
    whole = [entry(n) for n in range(index * WIDTH, (index + 1) * WIDTH)]
    level, data = encode_bundle(whole)
    _put(folder, TileName(level, index), data)
    for height in range(64 // HEIGHT):
        hashes = levels[height]
        if len(hashes) < WIDTH:
            return
        _put(folder, TileName(height, counts[height]), b"".join(hashes))
        counts[height] += 1
        if len(levels) == height + 1:
            levels.append([])
            counts.append(0)
        levels[height + 1].append(_whole(hashes))
        levels[height] = []


def _whole(hashes: list[bytes]) -> bytes:
    digest = hashlib.sha256
    while len(hashes) > 1:
        pairs = iter(hashes)
        hashes = [digest(b"\1" + left + right).digest() for left, right in zip(pairs, pairs)]  # noqa: B905
    return hashes[0]


def _root(levels: Sequence[Sequence[bytes]]) -> bytes:
    """The root over the right edge, from the lowest level up."""
    found: bytes | None = None
    for hashes in levels:
        stop = len(hashes)
        while stop:
            width = stop & -stop
            peak = _whole(list(hashes[stop - width : stop]))
            found = peak if found is None else merkle.node_hash(peak, found)
            stop -= width
    return merkle.EMPTY_ROOT if found is None else found


def _put(folder: Path, name: TileName, data: bytes) -> None:
    path = folder / name.path
    try:
        path.write_bytes(data)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _fill(data: Data, tiles: Path) -> None:
    """The store's rows. ``tiles``: the tiles' final folder."""
    sizes = data.sizes
    engine = open_store(data.url, create=True)
    zero = "sha256:" + 64 * "0"
    with Session(engine) as session:
        session.add(tables.TrustRoot(digest=zero, name="benchmark", version=1, envelope=b""))
        session.add(
            tables.Policy(digest=zero, name="benchmark", version=1, signer="none", envelope=b"")
        )
        session.flush()
        insert_rows(session, tables.Corpus, _corpora(sizes))
        insert_rows(session, tables.Credential, _credentials(sizes, load_key(data.url)))
        insert_rows(session, tables.Attestation, (_attestation(data, n, zero) for n in _all(sizes)))
        insert_rows(session, tables.Ledger, (_ledger(data, n, tiles) for n in _all(sizes)))
        insert_rows(session, tables.Model, (_model(data, n) for n in _all(sizes)))
        insert_rows(session, tables.ModelVersion, (_version(data, n) for n in _all(sizes)))
        insert_rows(session, tables.Subject, (_subject(data, n) for n in _all(sizes)))
        insert_rows(session, tables.CorpusUse, _uses(data))
        insert_rows(session, tables.Coverage, _coverage(data))
        insert_rows(session, tables.Record, _records(data))
        session.commit()
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


def _ledger(data: Data, n: int, tiles: Path) -> dict[str, Any]:
    size = data.size(n)
    return {
        "run": data.run(n),
        "origin": f"benchmark/{data.run(n)}",
        "size": size,
        "root": f"sha256:{data.root(size).hex()}",
        "checkpoint": b"not signed\n",
        "tiles": str(tiles.resolve()),
    }


def _model(data: Data, n: int) -> dict[str, Any]:
    return {
        "name": data.model(n),
        "description": "",
        "labels": {},
        "created": AT,
        "user": "benchmark",
    }


def _version(data: Data, n: int) -> dict[str, Any]:
    return {
        "model": data.model(n),
        "version": "1.0.0",
        "major": 1,
        "minor": 0,
        "patch": 0,
        "attestation": data.digest(n),
        "stage": "none",
        "labels": {},
        "notes": "",
        "created": AT,
        "user": "benchmark",
    }


def _subject(data: Data, n: int) -> dict[str, Any]:
    digest = hashlib.sha256(f"weights {n}".encode()).hexdigest()
    return {"attestation": data.digest(n), "name": "model.safetensors", "sha256": digest}


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
