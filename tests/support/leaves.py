"""Made-up ledger leaves."""

from __future__ import annotations

from govray.governance.record.ledger import CorpusUse, GradientNorms, Leaf, MeasuredPass

DIGEST = "sha256:" + "ab" * 32


def leaf(step: int, *, rows: int = 3, world: int = 2) -> Leaf:
    return Leaf(
        step=step,
        world_size=world,
        policy=DIGEST,
        plan=DIGEST,
        streams={DIGEST: (step * 3, step * 3 + 3)},
        corpora={"a": CorpusUse(rows=rows, targets=rows * 8)},
    )


def norms(step: int, *, square: float = 0.5, rank: int = 0) -> GradientNorms:
    return GradientNorms(
        step=step,
        passes=(MeasuredPass(rank=rank, stream=DIGEST, corpora={"a": 3}),),
        squared_norms={"a": {"head": square}},
    )
