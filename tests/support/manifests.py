"""A made-up prepare manifest and its corpora."""

from __future__ import annotations

import hashlib

import numpy as np

from govray.governance.formats import canonical_json
from govray.governance.formats.record_columns import EMPTY, TRAIN, ManifestRecord, RecordColumns
from govray.governance.formats.record_columns import RESERVE as RESERVE_CODE
from govray.governance.record.prepare_manifest import (
    BoundCorpus,
    BoundManifest,
    BoundPart,
    BoundShard,
    DrawnReserve,
    InlineManifest,
    Manifest,
    Part,
    PreparedCorpus,
    Reserve,
    ReserveShard,
    RowGroup,
    SplitCounts,
    TokenizerIdentity,
)
from govray.governance.record.prepared_records import PreparedRecords

DIGEST = canonical_json.sha256(b"any")


RESERVE = Reserve(share=0.25, salt="ab" * 16)


def corpus(
    name: str,
    parts: list[list[int]],
    context: int,
    *,
    packed_reserve: bool = False,
    equal: int = 1,
) -> PreparedCorpus:
    """A corpus whose records have these token counts, part by part; ``equal`` in a row are one."""
    records: list[ManifestRecord] = []
    made: list[Part] = []
    for k, lengths in enumerate(parts):
        start = len(records)
        for i, tokens in enumerate(lengths):
            sha256 = hashlib.sha256(f"{name}/{k}/{i // equal}".encode())
            held = RESERVE.holds(sha256.digest())
            split = "empty" if tokens == 0 else "reserve" if held else "train"
            records.append(ManifestRecord(sha256.hexdigest(), tokens, split))
        tokens = sum(r.tokens + 1 for r in records[start:] if r.split == "train")
        rows = len([o for o in range(0, tokens, context + 1) if tokens - o >= 2])
        made.append(
            Part(
                source=f"records-{k:05}.parquet",
                records=(start, len(records)),
                tokens=tokens,
                rows=rows,
                file=f"class={'0' * 12}/{name}-{k:05}.parquet",
                row_groups=tuple(RowGroup(rows=1, digest=DIGEST) for _ in range(rows)),
                reserve=_reserve(name, k, records[start:], context) if packed_reserve else None,
            )
        )
    return PreparedCorpus(
        corpus=name,
        credential=DIGEST,
        class_digest=DIGEST,
        records=tuple(records),
        parts=tuple(made),
    )


def _reserve(
    name: str, part: int, records: list[ManifestRecord], context: int
) -> ReserveShard | None:
    tokens = sum(r.tokens + 1 for r in records if r.split == "reserve")
    rows = tokens // (context + 1) + (tokens % (context + 1) >= 2)
    if not rows:
        return None
    return ReserveShard(
        tokens=tokens,
        rows=rows,
        file=f"class={'0' * 12}/{name}-{part:05}-reserve.parquet",
        row_groups=(RowGroup(rows=rows, digest=DIGEST),),
    )


def make_manifest(*corpora: PreparedCorpus, context: int = 7) -> InlineManifest:
    return InlineManifest(
        tokenizer=TokenizerIdentity(name="bytes", digest=DIGEST, vocabulary=257, separator=256),
        context=context,
        reserve=RESERVE,
        corpora=corpora,
    )


def records_of(manifest: Manifest) -> PreparedRecords:
    """The records that stand in a manifest."""
    found = PreparedRecords.inline(manifest)
    assert found is not None
    return found


def bind(
    inline: InlineManifest, reserve: DrawnReserve
) -> tuple[BoundManifest, dict[tuple[str, int], RecordColumns]]:
    """The same manifest with its records in columns, split by ``reserve``."""
    read: dict[tuple[str, int], RecordColumns] = {}
    row = inline.context + 1
    corpora = []
    for corpus in inline.corpora:
        whole = RecordColumns.of(corpus.records)
        splits = np.where(reserve.held(whole.entries), RESERVE_CODE, TRAIN)
        splits = np.where(whole.tokens == 0, EMPTY, splits).astype(np.uint8)
        whole = RecordColumns(whole.entries, whole.tokens, splits)
        parts = []
        for k, part in enumerate(corpus.parts):
            columns = read[corpus.corpus, k] = whole.slice(*part.records)
            train, held, empty = columns.counts()
            tokens, kept = columns.stream_tokens(TRAIN), columns.stream_tokens(RESERVE_CODE)
            shard = {"rows_per_group": 4, "groups_digest": DIGEST}
            parts.append(
                BoundPart(
                    source=part.source,
                    records=part.records,
                    splits=SplitCounts(train=train, reserve=held, empty=empty),
                    tokens=tokens,
                    rows=tokens // row + (tokens % row >= 2),
                    file=part.file,
                    records_digest=columns.digest,
                    reserve=BoundShard(
                        tokens=kept,
                        rows=kept // row + (kept % row >= 2),
                        file=part.file.replace(".parquet", ".reserve.parquet"),
                        **shard,
                    )
                    if held
                    else None,
                    **shard,
                )
            )
        corpora.append(
            BoundCorpus(
                corpus=corpus.corpus,
                credential=corpus.credential,
                class_digest=corpus.class_digest,
                commitment=corpus.commitment,
                parts=tuple(parts),
                planted=corpus.planted,
            )
        )
    bound = BoundManifest(
        tokenizer=inline.tokenizer,
        context=inline.context,
        reserve=reserve,
        corpora=tuple(corpora),
        quarantine=inline.quarantine,
    )
    return bound, read
