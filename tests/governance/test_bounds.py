"""Small files that state large numbers: each verification ends soon, and in little memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from world import AT, RUN, World, unchecked, write

from govray.errors import CouldNotCheck
from govray.governance import bundle, canonical
from govray.governance.attestation import Attestation, LedgerHead
from govray.governance.ledger import CorpusUse, Leaf, Ledger
from govray.governance.plan import BatchPlan, StreamPlan
from govray.governance.verify import verify

ROWS = 1 << 40


def with_rows(world: World, folder: Path, rows: int) -> None:
    """The operator signs a plan whose only step reads ``rows`` rows of every stream."""
    data = (folder / bundle.ATTESTATION).read_bytes()
    stated = unchecked(Attestation, data, world.operator).document
    streams = tuple(
        StreamPlan(**dict(s) | {"quota": rows, "epochs": -(-rows // s.n)})
        for s in stated.plan.streams
    )
    plan = BatchPlan(**dict(stated.plan) | {"streams": streams, "max_steps": 1})
    leaf = Leaf(
        step=0,
        world_size=1,
        policy=stated.policy.digest,
        plan=plan.digest,
        streams={s.id: (0, rows) for s in streams},
        corpora={c: CorpusUse(rows=rows, targets=rows) for c in plan.corpora},
    )
    made = Ledger(RUN, [leaf])
    files: dict[str, Any] = dict(stated.files)
    for name, content in (
        (bundle.LEDGER, made.data),
        (bundle.CHECKPOINT, made.sign(world.keys.operator)),
    ):
        write(folder / name, content)
        files[name] = canonical.sha256(content)
    head = LedgerHead(origin=made.origin, size=1, root="sha256:" + made.root.hex())
    changed = {"plan": plan, "files": files, "ledger": head}
    world.attest(folder, stated.model_copy(update=changed))


def test_a_plan_of_a_tera_row_ends_within_a_second(world: World, model: Path) -> None:
    with_rows(world, model, ROWS)
    assert (model / bundle.ATTESTATION).stat().st_size < 16_000
    began = time.process_time()
    with pytest.raises(CouldNotCheck, match="3,298,534,883,328 rows") as answer:
        verify(model, trust_root=world.root, at=AT)
    assert time.process_time() - began < 1
    assert "--max-rows" in str(answer.value)


def test_the_bound_on_rows_is_the_callers(world: World, untouched: Path) -> None:
    rows = sum(
        stop - start
        for leaf in verify(untouched, trust_root=world.root, at=AT).ledger.steps
        for start, stop in leaf.streams.values()
    )
    for limit in (rows, None):
        verify(untouched, trust_root=world.root, at=AT, max_rows=limit)
    with pytest.raises(CouldNotCheck, match=f"{rows - 1} are counted at most"):
        verify(untouched, trust_root=world.root, at=AT, max_rows=rows - 1)
