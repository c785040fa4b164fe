"""What steps read, counted by a walk over the rows: what the counts over arrays are held to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.ledger import Leaf
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.prepared_records import PreparedRecords
from govray.governance.record.row_counts import CorpusTotal


def corpus_counts(
    plan: BatchPlan, manifest: Manifest, streams: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    """Corpus → (rows, loss targets) in plan ranges, one step's say; only what is non-zero."""
    counts: dict[str, tuple[int, int]] = {}
    for stream, (start, stop) in streams.items():
        for _, corpus, row in plan.read(stream, range(start, stop)):
            rows, targets = counts.get(corpus, (0, 0))
            counts[corpus] = rows + 1, targets + manifest.targets(corpus, row)
    return counts


def corpus_totals(
    leaves: Iterable[Leaf], plan: BatchPlan, manifest: Manifest, records: PreparedRecords
) -> dict[str, CorpusTotal]:
    """Corpus → what the leaves' ranges read of it; corpora that were not read are absent."""
    rows: dict[str, set[int]] = {}
    tokens: dict[str, int] = {}
    steps: dict[str, set[tuple[int, int]]] = {}
    for leaf in leaves:
        for stream, (start, stop) in leaf.streams.items():
            for _, corpus, row in plan.read(stream, range(start, stop)):
                if corpus not in leaf.corpora:
                    continue
                rows.setdefault(corpus, set()).add(row)
                tokens[corpus] = tokens.get(corpus, 0) + manifest.targets(corpus, row)
                steps.setdefault(corpus, set()).add((leaf.branch, leaf.step))
    return {
        corpus: CorpusTotal(
            records=len({s.record for r in read for s in records.row_records(corpus, r)}),
            rows=len(read),
            tokens=tokens[corpus],
            steps=len(steps[corpus]),
        )
        for corpus, read in sorted(rows.items())
    }
