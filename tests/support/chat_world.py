"""A world whose rows are conversations, with some tokens of each as loss targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from govray.governance.formats.row_schema import CHAT
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.ledger import CorpusUse, Leaf
from govray.governance.record.prepare_manifest import Manifest, RowTargets
from tests.support.world import World, same


class ChatWorld(World):
    """A world whose rows are conversations: each row has some of its tokens as targets.

    Corpus beta has one row without any.
    """

    def __init__(self) -> None:
        super().__init__()
        self.credentials = {c: self.issue(c, rows=CHAT) for c in self.records}
        self.manifest: Manifest
        self.planned: BatchPlan

    def mask(self, manifest: Manifest) -> Manifest:
        draw = np.random.default_rng(5)
        corpora = []
        for corpus in manifest.corpora:
            parts, before = [], 0
            for part in corpus.parts:
                rows = np.arange(before, before + part.rows)
                most = manifest.targets_of(corpus.corpus, rows)
                found = (draw.random(part.rows) * (most + 1)).astype(np.int64)
                if corpus.corpus == "beta":
                    found[0] = 0
                columns = self.files[part.records_digest]
                self.files[part.records_digest] = replace(columns, row_targets=found)
                parts.append(part.model_copy(update={"targets": RowTargets.of(found)}))
                before += part.rows
            corpora.append(corpus.model_copy(update={"parts": tuple(parts)}))
        fields = {name: getattr(manifest, name) for name in Manifest.model_fields}
        self.manifest = Manifest(**fields | {"corpora": tuple(corpora), "rows": CHAT})
        return self.manifest

    def count(self, leaves: list[Leaf]) -> list[Leaf]:
        records = self.files.of(self.manifest)
        found = []
        for leaf in leaves:
            uses: dict[str, list[int]] = {}
            for stream, (start, stop) in leaf.streams.items():
                for _, corpus, row in self.planned.read(stream, range(start, stop)):
                    targets = int(records.targets_of(corpus, np.array([row]))[0])
                    uses.setdefault(corpus, []).append(targets)
            corpora = {c: CorpusUse(rows=len(t), targets=sum(t)) for c, t in sorted(uses.items())}
            found.append(leaf.model_copy(update={"corpora": corpora}))
        return found

    def model(
        self,
        folder: Path,
        leaves: Callable[[list[Leaf]], list[Leaf]] = same,
        manifest: Callable[[Manifest], Manifest] = same,
    ) -> Path:
        def kept(plan: BatchPlan) -> BatchPlan:
            self.planned = plan
            return plan

        return self.deploy(
            folder,
            manifest=lambda made: manifest(self.mask(made)),
            plan=kept,
            leaves=lambda made: leaves(self.count(made)),
        )
