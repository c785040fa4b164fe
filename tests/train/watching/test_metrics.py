"""What a whole run tells Ray's metrics agents, against its ledger. One rank, no Ray."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from govray.errors import Refused
from govray.governance.record.ledger import Leaf
from govray.train.run_folder.ledger_wal import recorded_leaves
from govray.train.watching.metrics import DECLARED, RunMetrics
from tests.support.deployment import Deployment
from tests.support.metrics_agent import Agent, metrics_agent
from tests.support.newest_weights import newest_weights
from tests.support.solo import run_here


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    return metrics_agent(monkeypatch)


def train(here: Deployment, **changes: Any) -> Path:
    run = here.trainer(**changes).train()
    assert isinstance(run, Path)
    return run


def test_a_runs_metrics_say_what_its_ledger_says_and_change_no_weight(
    here: Deployment, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(here)
    said = agent.series
    leaves = [leaf for leaf in recorded_leaves(run) if isinstance(leaf, Leaf)]
    targets: dict[str, int] = defaultdict(int)
    for leaf in leaves:
        for corpus, use in leaf.corpora.items():
            targets[corpus] += use.targets
    total = sum(targets.values())
    open_, weak = targets["open-one"] + targets["open-two"], targets["weak-one"]

    assert said["govray_steps_total"] == {(): 12}
    assert said["govray_tokens_total"] == {(): total}
    counted = said["govray_layer_group_targets_total"]
    assert counted["embedding",] == counted["block.0",] == open_
    assert counted["block.1",] == counted["head",] == open_ + weak
    assert counted["adapters",] == targets["acme"]
    assert said["govray_ledger_lag_steps"] == {(): 0}
    assert (said["govray_step"], said["govray_max_steps"]) == ({(): 11}, {(): 12})
    assert said["govray_quarantined_records"][()] > 0
    assert said["govray_tokens_per_second"][()] > 0
    share = said["govray_permitted_share"]
    assert 0 < share["embedding",] < share["head",] < 1
    lowest, highest = share["embedding",], share["head",]
    assert lowest < said["govray_permitted_parameter_share"][()] < highest
    assert {stall for (stall,) in said["govray_stall_seconds_total"]} == {"data", "commit"}
    # Nothing is set each step.
    assert agent.calls < 12 * len(DECLARED)

    monkeypatch.setattr(RunMetrics, "stepped", lambda *args, **kwargs: None)
    monkeypatch.setattr(RunMetrics, "committing", lambda *args, **kwargs: None)
    assert newest_weights(train(here)) == newest_weights(run)


def test_metrics_that_touch_a_weight_are_seen(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: what touches a weight between steps is seen."""
    run_here(monkeypatch)
    stepped = RunMetrics.stepped

    def meddles(self: RunMetrics, *args: Any, **kwargs: Any) -> None:
        stepped(self, *args, **kwargs)
        with torch.no_grad():
            _model[0].mul_(1.0001)

    _model: list[torch.Tensor] = []
    made = RunMetrics.__init__

    def keeps(self: RunMetrics, order: Any, model: Any, **kwargs: Any) -> None:
        made(self, order, model, **kwargs)
        _model[:] = [next(model.parameters())]

    monkeypatch.setattr(RunMetrics, "__init__", keeps)
    monkeypatch.setattr(RunMetrics, "stepped", meddles)
    with pytest.raises(Refused, match="something other than the optimizer wrote embedding"):
        train(Deployment(tmp_path / "here"))
