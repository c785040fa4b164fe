"""Leaves of both kinds through a commit and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.policy.route import Route
from govray.governance.record.ledger import AnyLeaf, CorpusUse, Ledger
from govray.train.checkpoint import commit_folder
from govray.train.inputs.order import Order
from govray.train.run_folder.ledger_wal import WriteAhead
from govray.train.state.snapshot import Capture, TrainingState, folder_name
from govray.train.state.trained_model import TorchModel
from tests.support.committing import an_order
from tests.support.leaves import DIGEST, leaf, norms

OTHER = "sha256:" + "0e" * 32


@pytest.fixture
def order(tmp_path: Path) -> Order:
    return an_order(tmp_path)


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


def test_a_commit_has_the_adapters_that_its_steps_trained(order: Order) -> None:
    """One that no step trained is drawn again, as it was."""

    def adapted() -> TorchModel:
        torch.manual_seed(3)
        model = GPT(blocks=1, width=8, context=4, vocabulary=11)
        adapters = Adapters(model, {"early": 2, "never": 2}, seed=5)
        every = [*model.parameters(), *(p for _, p in adapters.named_parameters())]
        return TorchModel(model, torch.optim.AdamW(every), adapters)

    routes = {other: Route({}, name, 2) for name, other in (("early", DIGEST), ("never", OTHER))}
    order = replace(order, routes=routes)
    took = {"corpora": {"a": CorpusUse(rows=3, targets=24, route=DIGEST)}}
    before = adapted()
    folder = commit(
        TrainingState(before).capture(1, order, [leaf(0).model_copy(update=took)]), order
    )
    names = commit_folder.load(folder).names
    assert {name for name in names if name.startswith("adapters/")} == set(
        model_folder.adapter_files("early")
    )
    after = adapted()
    TrainingState(after).restore(folder, order)
    for (name, _, ours), (other, _, theirs) in zip(
        after.adapters(), before.adapters(), strict=True
    ):
        assert name == other
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[each], theirs[each]) for each in ours)
    # The control: rows without a loss target train nothing.
    took["corpora"]["a"] = CorpusUse(rows=3, targets=0, route=OTHER)
    quiet = TrainingState(before).capture(1, order, [leaf(0).model_copy(update=took)])
    assert quiet is not None
    assert not any(name.startswith("adapters/") for name in quiet.contents)
