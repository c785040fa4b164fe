"""Leaves of both kinds through a commit and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from govray.engine.model.adapters import Adapters
from govray.governance.formats import canonical_json
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.ledger import AnyLeaf, Ledger
from govray.governance.record.row_order import RowOrder
from govray.train.checkpoint import commit_folder
from govray.train.inputs.order import Order
from govray.train.inputs.run_settings import RunSettings
from govray.train.run_folder.ledger_wal import WriteAhead
from govray.train.state.snapshot import Capture, TrainingState, folder_name
from govray.train.state.trained_model import TorchModel
from tests.support.leaves import DIGEST, leaf, norms


@pytest.fixture
def order(tmp_path: Path) -> Order:
    fields: dict[str, Any] = {
        name: {} for name in ("routes", "groups", "policy_groups", "expiries")
    }
    return Order(
        run_id="run-1",
        folder=str(tmp_path),
        prepared="",
        manifest=None,  # type: ignore[arg-type]  # a commit binds its digest alone
        manifest_digest=DIGEST,
        plan=BatchPlan(
            seed=0,
            max_steps=3,
            manifest=DIGEST,
            context=4,
            order=RowOrder(block=1, window=1 << 20),
            streams=(),
        ),
        policy_digest=DIGEST,
        settings=RunSettings(seed=0, clip_norm=None, checkpoint_every=1),
        **fields,
    )


def commit(captured: Capture | None, order: Order) -> Path:
    assert captured is not None
    folder = Path(order.folder) / folder_name(captured.step)
    commit_folder.commit(folder, captured.files())
    return folder


def state() -> TrainingState:
    model = nn.Linear(2, 2)
    return TrainingState(
        TorchModel(model, torch.optim.AdamW(model.parameters()), Adapters(model, {}, seed=0))
    )


def test_a_resumed_run_ends_with_the_ledger_of_an_undisturbed_one(order: Order) -> None:
    path = Path(order.folder) / "ledger.ahead.jsonl"
    every: list[AnyLeaf] = [leaf(0), norms(0), leaf(1), leaf(2), norms(2)]
    ahead = WriteAhead(path, ())
    ahead.append(leaf(0), norms(0))
    folder = commit(state().capture(1, order, ahead.leaves), order)
    ahead.append(leaf(1))
    restored = state().restore(folder, order)
    assert restored == (leaf(0), norms(0))
    resumed = WriteAhead(path, restored)
    resumed.append(leaf(1))
    resumed.append(leaf(2), norms(2))
    assert resumed.leaves == every
    last = commit_folder.load(commit(state().capture(3, order, resumed.leaves), order))
    ledger = Ledger("run-1", every)
    assert last.files["ledger.jsonl"] == ledger.data == path.read_bytes()
    recorded: Any = canonical_json.parse_canonical(last.files["state.json"])
    assert recorded["ledger"] == {"size": 5, "root": "sha256:" + ledger.root.hex()}
