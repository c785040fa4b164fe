"""One short run with one killed worker, governed and bare; and a run that times its commits.

Both runs have the same model, rows a step, optimizer, workers and steps between checkpoints. The
bare one is what a Ray Train user writes: DDP, `torch.save` into a folder, `ray.train.report`. It
generates its rows, so it reads no data at all. Each worker process writes what it does, and when,
into one file of events.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import TorchTrainer, prepare_model

from benchmarks.one_corpus import OneCorpus
from govray.engine.model import gpt
from govray.train import GovernedTrainer, govern
from govray.train.inputs.experiment_config import parse_experiment

_VOCABULARY = 257


@dataclass(frozen=True)
class RunShape:
    """What both kinds of run have in common.

    Attributes:
        blocks, width, context: Of the GPT.
        rows: Of a step, over all workers.
        steps: Of the run.
        commit_every: Steps between checkpoints.
        kill_at: The step in which rank 1 is killed, once; never if None.
        workers: How many, or the least and the most.
        cpus: Of a worker.
    """

    blocks: int
    width: int
    context: int
    rows: int
    steps: int
    commit_every: int
    kill_at: int | None = None
    workers: int | tuple[int, int] = 2
    cpus: float = 0.5

    def model(self) -> gpt.GPT:
        """The GPT of this shape."""
        return gpt.GPT(self.blocks, self.width, self.context, _VOCABULARY)


@dataclass(frozen=True)
class Recovered:
    """Figures from one killed run's events.

    Attributes:
        recovery: Seconds from the kill to the end of the next step.
        lost: Steps that were done twice.
        step: Median seconds of an undisturbed step.
    """

    recovery: float
    lost: int
    step: float


def run_governed(deployment: OneCorpus, shape: RunShape, folder: Path) -> Path:
    """A governed run; returns the file of its events."""
    events = folder / "events.jsonl"
    folder.mkdir(parents=True)
    value = {
        "name": "governed",
        "data": {
            "corpora": str(deployment.corpora),
            "rows_per_step": {"everything": shape.rows},
            "epochs": 1000,
        },
        "governance": {"policy": str(deployment.policy), "trust_root": str(deployment.root)},
        "attestation_key": str(deployment.key),
        "max_steps": shape.steps,
        "hyperparameters": {"context": shape.context},
        "checkpoint": {"every_steps": shape.commit_every},
    }
    GovernedTrainer(
        parse_experiment(value, where="benchmark"),
        train_loop_per_worker=_governed_loop,
        train_loop_config={"shape": asdict(shape), "events": str(events)},
        scaling_config=_scaling(shape),
        # One place for all rounds: data is prepared once.
        run_config=_run_config(folder.name, folder.parent / "governed"),
    ).train()
    return events


def run_bare(shape: RunShape, folder: Path) -> Path:
    """The same run without governance; returns the file of its events."""
    events = folder / "events.jsonl"
    folder.mkdir(parents=True)
    TorchTrainer(
        _bare_loop,
        train_loop_config={"shape": asdict(shape), "events": str(events)},
        scaling_config=_scaling(shape),
        run_config=_run_config(folder.name, folder.parent / "bare"),
    ).fit()
    return events


def told(events: Path) -> list[dict[str, Any]]:
    """What the workers of a run recorded, in order, without a line that is still being written."""
    lines = events.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def recovered(events: Path) -> Recovered:
    """Read a killed run's events."""
    all_told = told(events)
    [killed] = [each for each in all_told if each["event"] == "kill"]
    steps = [each for each in all_told if each["event"] == "step"]
    # Rank 0 may end a step after rank 1 died in the next. Another process is another attempt.
    before = [each for each in steps if each["pid"] == steps[0]["pid"]]
    after = [each for each in steps if each["pid"] != steps[0]["pid"]]
    periods = sorted(
        b["at"] - a["at"] for part in (before, after) for a, b in itertools.pairwise(part)
    )
    return Recovered(
        recovery=after[0]["at"] - killed["at"],
        lost=before[-1]["step"] + 1 - after[0]["step"],
        step=periods[len(periods) // 2],
    )


def step_seconds(events: Path) -> list[tuple[int, float, float]]:
    """(step, seconds from the end of the step before to its end, seconds of these inside
    report)."""
    steps = [each for each in told(events) if each["event"] == "step"]
    return [(b["step"], b["at"] - a["at"], b["reporting"]) for a, b in itertools.pairwise(steps)]


def _governed_loop(config: dict[str, Any]) -> None:
    shape = RunShape(**config["shape"])
    model = shape.model()
    run = govern(model, torch.optim.AdamW(model.parameters()))
    tell = _Teller(Path(config["events"]), shape.kill_at)
    for batch in run.batches():
        tell.strike(batch.step)
        metrics = run.step(batch, gpt.loss)
        began = time.time()
        run.report(metrics)
        tell.step(batch.step, time.time() - began)


def _bare_loop(config: dict[str, Any]) -> None:
    shape = RunShape(**config["shape"])
    torch.set_num_threads(1)
    torch.manual_seed(17)
    plain = shape.model()
    model = prepare_model(plain)
    optimizer = torch.optim.AdamW(model.parameters())
    start = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    tell = _Teller(Path(config["events"]), shape.kill_at)
    for step in range(start, shape.steps):
        tell.strike(step)
        rows = torch.randint(_VOCABULARY, (shape.rows // dist.get_world_size(), shape.context + 1))
        optimizer.zero_grad()
        gpt.loss(model, {"tokens": rows[:, :-1], "targets": rows[:, 1:]}).mean().backward()
        optimizer.step()
        began = time.time()
        if (step + 1) % shape.commit_every == 0 or step + 1 == shape.steps:
            _save(step + 1, plain, optimizer)
        tell.step(step, time.time() - began)


def _save(step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, Path(folder) / "state.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"step": step}, checkpoint=checkpoint)


class _Teller:
    """One worker's events. Rank 0 records steps, rank 1 is the one that dies."""

    def __init__(self, events: Path, kill_at: int | None) -> None:
        self._events = events
        self._kill_at = kill_at
        self._rank = dist.get_rank()

    def strike(self, step: int) -> None:
        """End this process, if this is the step and it has not happened yet."""
        marker = self._events.with_name("killed")
        if self._rank == 1 and step == self._kill_at and not marker.exists():
            marker.touch()
            self._tell(event="kill", step=step)
            os.kill(os.getpid(), signal.SIGKILL)

    def step(self, step: int, reporting: float) -> None:
        """Record that a step is done, and what follows it."""
        if self._rank == 0:
            self._tell(event="step", step=step, reporting=reporting)

    def _tell(self, **event: Any) -> None:
        with self._events.open("a") as file:
            file.write(json.dumps({**event, "at": time.time(), "pid": os.getpid()}) + "\n")


def _scaling(shape: RunShape) -> ray.train.ScalingConfig:
    return ray.train.ScalingConfig(
        num_workers=shape.workers, resources_per_worker={"CPU": shape.cpus}
    )


def _run_config(name: str, storage: Path) -> ray.train.RunConfig:
    return ray.train.RunConfig(
        name=name,
        storage_path=str(storage),
        failure_config=ray.train.FailureConfig(max_failures=1),
    )
