"""Training loops that workers import; each is what a user might write."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest
import ray.train
import torch
import torch.distributed as dist
import torch.nn.functional as F

from govray.engine.model import gpt
from govray.train import govern, shard
from govray.train.inputs.experiment_config import Experiment
from govray.train.inputs.order import Assignment, current
from govray.train.inputs.revocation_feed import KEPT
from govray.train.loop.entrypoint import load_entrypoint
from govray.train.loop.experiment_loop import learning_rate
from govray.train.run_folder import clock
from govray.train.state import snapshot


def script(config: dict[str, Any]) -> None:
    model = gpt.GPT(context=32, vocabulary=257, **config["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])

    def loss_fn(model, batch):
        logits = model(batch["tokens"])
        return F.cross_entropy(logits.transpose(1, 2), batch["targets"], reduction="none")

    run = govern(model, optimizer)
    for batch in run.batches():
        metrics = run.step(batch, loss_fn)
        run.report({**metrics, "validation/loss": 1.5})


def dies_once_there_is_a_commit(config: dict[str, Any]) -> None:
    """The experiment's own loop, but rank 1's process ends once, before a step's report.

    Not before a commit of the run is whole.
    """
    run = Path(config.pop("run"))
    flag = Path(config.pop("flag"))
    die_at = config.pop("fail_at")

    def die(metrics: Mapping[str, float]) -> None:
        if metrics["step"] == die_at and dist.get_rank() == 1 and not flag.exists():
            while snapshot.latest(run) is None:
                time.sleep(0.05)
            flag.touch()
            os._exit(1)

    _run(config, lambda step: None, die)


def reads_its_shards(config: dict[str, Any]) -> None:
    """The experiment's own loop, after a look at what `ray.train.get_dataset_shard` gives.

    Each rank keeps what it found in a folder. Rank 1's process ends once if there is a ``flag``.
    """
    seen = Path(config.pop("seen"))
    rank = ray.train.get_context().get_world_rank()
    whole = ray.train.get_dataset_shard("train")
    first = {
        name: [
            [step, *tokens]
            for batch in ray.train.get_dataset_shard(name).iter_torch_batches(batch_size=5)
            for step, tokens in zip(batch["step"].tolist(), batch["tokens"].tolist(), strict=True)
        ]
        for name in ("train", *config.pop("partitions"))
    }
    (dies_once_there_is_a_commit if "flag" in config else _plainly)(config)
    found = {"start": whole.start_step, "rows": first, "stats": whole.stats()}
    (seen / f"{rank}.json").write_text(json.dumps(found))


def _plainly(config: dict[str, Any]) -> None:
    _run(config, lambda step: None)


def paced(config: dict[str, Any]) -> None:
    """The experiment's own loop, but steps take a while as long as a file exists.

    Rank 0 notes each step that it did and its loss.
    """
    slow = Path(config.pop("slow"))
    ran = Path(config.pop("ran"))
    waited: set[int] = set()

    def wait(step: int) -> None:
        if step not in waited and slow.exists():
            time.sleep(0.2)
        waited.add(step)

    def note(metrics: Mapping[str, float]) -> None:
        if not dist.is_initialized() or dist.get_rank() == 0:
            with ran.open("a") as file:
                file.write(json.dumps([int(metrics["step"]), metrics["loss"]]) + "\n")

    _run(config, wait, note)


def _fail_once(flag: Path) -> None:
    if dist.get_rank() == 1 and not flag.exists():
        flag.touch()
        raise RuntimeError("a user's bug")


def _run(config: dict[str, Any], before_loss: Any, after_step: Any = lambda metrics: None) -> None:
    settings = Experiment.model_validate(config)
    model, loss = load_entrypoint(settings)
    shard(model)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.optimizer.lr,
        betas=settings.optimizer.betas,
        weight_decay=settings.optimizer.weight_decay,
    )
    run = govern(model, optimizer)
    for batch in run.batches():
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings.optimizer, batch.step, settings.max_steps)

        def checked(model, tensors, step=batch.step):
            before_loss(step)
            return loss(model, tensors)

        metrics = run.step(batch, checked)
        after_step(metrics)
        run.report(metrics)


def ends_in_flight(config: dict[str, Any]) -> None:
    """While the loop runs, a credential expires, another is revoked, and rank 1 fails once.

    It expires in step 3. In step 6 rank 0 puts the newer revocation list in its
    place, and waits until it has been read. In step 9 rank 1 raises.
    """
    newer, followed = map(Path, config.pop("lists"))
    flag = Path(config.pop("flag"))

    def replace() -> None:
        assignment = current.get()
        assert isinstance(assignment, Assignment)
        kept = Path(assignment.order.folder, KEPT)
        data = newer.read_bytes()
        newer.replace(followed)
        while all(each.read_bytes() != data for each in kept.glob("*")):
            time.sleep(0.05)

    with clock_behind(0 if flag.exists() else 3600) as set_right:

        def happen(step: int) -> None:
            if step == 3:
                set_right()
            if step == 6 and dist.get_rank() == 0 and newer.exists():
                replace()
            if step == 9:
                _fail_once(flag)

        _run(config, happen)


@contextmanager
def clock_behind(seconds: float, *, worker: bool = True) -> Iterator[Callable[[], None]]:
    """A clock of runs that is behind, so that what has expired since holds until it is set right.

    Yields what sets it right. A driver of workers elsewhere has no steps, so its clock is the
    documents' alone.
    """
    real, behind = time.time, seconds

    class Behind(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) - timedelta(seconds=behind)

    def set_right() -> None:
        nonlocal behind
        behind = 0

    with pytest.MonkeyPatch.context() as patch:
        if worker:
            patch.setattr(time, "time", lambda: real() - behind)
        patch.setattr(clock, "datetime", Behind)
        yield set_right
