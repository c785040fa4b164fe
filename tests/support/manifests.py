"""Prepare manifests of made-up corpora, whose records stand in columns as those of files do."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from govray.errors import CouldNotCheck
from govray.governance.formats import canonical_json
from govray.governance.formats.record_columns import RecordColumns
from govray.governance.policy.record_commitment import commitment, entry
from govray.governance.record.batch_plan import BatchPlan, StreamCorpus, StreamPlan
from govray.governance.record.prepare_manifest import (
    Manifest,
    Part,
    PreparedCorpus,
    Reserve,
    TokenizerIdentity,
)
from govray.governance.record.prepared_records import PreparedRecords
from govray.governance.record.row_order import RowOrder

DIGEST = canonical_json.sha256(b"any")
SECRET = bytes(range(32))
"""What records are committed under."""

RESERVE = Reserve(share=0.25, salt="ab" * 16)

TOKENIZER = TokenizerIdentity(name="bytes", digest=DIGEST, vocabulary=257, separator=256)


class RecordFiles(dict[str, RecordColumns]):
    """The records of parts by their digest, as the files of prepared folders would have them."""

    def part(self, columns: RecordColumns, *, number: int, file: str, context: int) -> Part:
        """The part that these records make, whose shards nobody reads."""
        made = Part.of(
            columns,
            source=f"records-{number:05}.parquet",
            file=file,
            context=context,
            rows_per_group=4,
            groups_digest=DIGEST,
            reserve_groups_digest=DIGEST,
        )
        self[made.records_digest] = columns
        return made

    def read(self, corpus: PreparedCorpus, number: int) -> RecordColumns:
        """The records of a part."""
        part = corpus.parts[number]
        try:
            return self[part.records_digest]
        except KeyError:
            raise CouldNotCheck("the file of records is missing", where=part.records_file) from None

    def of(self, manifest: Manifest) -> PreparedRecords:
        """The records of a manifest whose parts were made here."""
        return PreparedRecords(manifest, self.read)


FILES = RecordFiles()
"""Those of `corpus`."""


def split(entries: Sequence[bytes], tokens: Sequence[int], reserve: Reserve) -> RecordColumns:
    each = np.frombuffer(b"".join(entries), np.uint8).reshape(-1, 32)
    counts = np.array(tokens, np.int64)
    return RecordColumns(each, counts, reserve.splits(each, counts))


def corpus(
    name: str, parts: list[list[int]], context: int, *, equal: int = 1, reserve: Reserve = RESERVE
) -> PreparedCorpus:
    """A corpus whose records have these token counts, part by part; ``equal`` in a row are one."""
    made: list[Part] = []
    stop = 0
    for k, lengths in enumerate(parts):
        entries = [
            entry(hashlib.sha256(f"{name}/{k}/{i // equal}".encode()).digest(), SECRET)
            for i in range(len(lengths))
        ]
        part = FILES.part(
            split(entries, lengths, reserve),
            number=k,
            file=f"class={'0' * 12}/{name}-{k:05}.parquet",
            context=context,
        )
        start, stop = stop, stop + len(lengths)
        made.append(part.model_copy(update={"records": (start, stop)}))
    return PreparedCorpus(
        corpus=name,
        credential=DIGEST,
        class_digest=DIGEST,
        commitment=commitment(SECRET),
        parts=tuple(made),
    )


def make_manifest(
    *corpora: PreparedCorpus, context: int = 7, reserve: Reserve = RESERVE
) -> Manifest:
    return Manifest(tokenizer=TOKENIZER, context=context, reserve=reserve, corpora=corpora)


def records_of(manifest: Manifest) -> PreparedRecords:
    return FILES.of(manifest)


WHOLE = RowOrder(block=1, window=1 << 20)
"""The order of corpora that fit into one window."""


def one_stream(
    rows: Mapping[str, int],
    *,
    steps: int,
    quota: int,
    seed: int = 3,
    manifest: str = DIGEST,
    context: int = 7,
    order: RowOrder = WHOLE,
    **stream: Any,
) -> BatchPlan:
    """A plan of one stream, which reads these corpora: name → rows."""
    corpora = tuple(StreamCorpus(corpus=name, rows=count) for name, count in rows.items())
    own = {"id": DIGEST, "profile": "p", "corpora": corpora, "phase": 0, "quota": quota}
    return BatchPlan(
        seed=seed,
        max_steps=steps,
        manifest=manifest,
        context=context,
        order=order,
        streams=(StreamPlan.model_validate(own | stream),),
    )
