"""What a run's metrics are where Prometheus scrapes them: the endpoint of a node's own agent."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch.distributed as dist

from govray.train.inputs.order import Assignment, current
from govray.train.loop.experiment_loop import train_loop
from govray.train.watching.metrics import DECLARED, PREFIX
from govray.train.watching.model_size import ModelSize
from govray.train.watching.run_callback import RunCallback
from tests.support.deployment import Deployment

pytestmark = [pytest.mark.story, pytest.mark.usefixtures("cluster")]

PATIENCE_S = 60.0


def last(run: str) -> re.Pattern[str]:
    """The line after a run's last step. Its cluster has the metrics of other runs, too."""
    return re.compile(rf'^ray_govray_steps_total\{{.*run="{re.escape(run)}".*\}} 6\.0$', re.M)


def scraped() -> str:
    [node] = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def trains_and_is_scraped(config: dict[str, Any]) -> None:
    """The experiment's loop; then rank 0 lives until its last metrics are at the endpoint."""
    page = Path(config.pop("page"))
    train_loop(config)
    assignment = current.get()
    assert isinstance(assignment, Assignment)
    if dist.get_rank() == 0:
        there = last(assignment.order.run_id)
        until = time.monotonic() + PATIENCE_S
        while not there.search(text := scraped()) and time.monotonic() < until:
            time.sleep(1)
        page.write_text(text)


class Kept(RunCallback):
    """Keeps what it is told on the driver."""

    def __init__(self) -> None:
        self.steps: dict[int, Mapping[str, float]] = {}
        self.files: set[str] = set()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        assert step not in self.steps
        self.steps[step] = metrics

    def attested(self, files: Mapping[str, bytes]) -> None:
        self.files = set(files)


def test_prometheus_finds_every_metric_of_a_run_and_callbacks_hear_every_step(
    tmp_path: Path,
) -> None:
    here = Deployment(tmp_path / "here")
    trainer = here.trainer(max_steps=6)
    page = tmp_path / "page"
    config = {**trainer.loop_config, "page": str(page)}
    kept, sizes = Kept(), list[ModelSize]()
    run = replace(
        trainer,
        train_loop_per_worker=trains_and_is_scraped,
        train_loop_config=config,
        callbacks=[kept],
        on_size=sizes.append,
    ).train(attest=True)
    text = page.read_text()
    lines = [line for line in text.splitlines() if f'run="{run.name}"' in line]
    named = {line.partition("{")[0] for line in lines}
    # Nothing in this policy asks for a monitor.
    expected = {PREFIX + each.name for each in DECLARED} - {"ray_govray_memorization_odds"}
    assert named == expected
    assert all('experiment="tiny"' in line for line in lines)
    stalls = {m[1] for line in lines if (m := re.search(r'stall="(\w+)"', line))}
    assert stalls == {"data", "agreement", "commit"}
    groups = {m[1] for line in lines if (m := re.search(r'layer_group="([^"]+)"', line))}
    assert list(kept.steps) == list(range(6))
    assert {"loss", "stream_loss/removable", "tokens_per_second"} <= kept.steps[5].keys()
    assert kept.files == {"attestation.dsse.json", "policy.dsse.json"}
    [size] = sizes
    assert 0.5 < (size.ratio or 0) < 1
    assert groups == {"embedding", "block.0", "block.1", "final_norm", "head", "adapters"}
