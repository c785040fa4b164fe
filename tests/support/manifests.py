"""A made-up prepare manifest and its corpora."""

from __future__ import annotations

import hashlib

from govray.governance.formats import canonical_json
from govray.governance.record.prepare_manifest import (
    Manifest,
    ManifestRecord,
    Part,
    PreparedCorpus,
    Reserve,
    RowGroup,
    TokenizerIdentity,
)

DIGEST = canonical_json.sha256(b"any")


RESERVE = Reserve(share=0.25, salt="ab" * 16)


def corpus(name: str, parts: list[list[int]], context: int) -> PreparedCorpus:
    """A corpus whose records have these token counts, part by part."""
    records: list[ManifestRecord] = []
    made: list[Part] = []
    for k, lengths in enumerate(parts):
        start = len(records)
        for i, tokens in enumerate(lengths):
            sha256 = hashlib.sha256(f"{name}/{k}/{i}".encode())
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
            )
        )
    return PreparedCorpus(
        corpus=name,
        credential=DIGEST,
        class_digest=DIGEST,
        records=tuple(records),
        parts=tuple(made),
    )


def make_manifest(*corpora: PreparedCorpus, context: int = 7) -> Manifest:
    return Manifest(
        tokenizer=TokenizerIdentity(name="bytes", digest=DIGEST, vocabulary=257, separator=256),
        context=context,
        reserve=RESERVE,
        corpora=corpora,
    )
