"""An entrypoint whose worker processes cause the faults of a schedule, each of them once."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from govray.engine.model import gpt
from govray.engine.step import GovernedStep
from govray.train.inputs.order import Assignment, current
from govray.train.run_folder.ledger_wal import WriteAhead
from govray.train.state.snapshot import TrainingState
from tests.faults.fault_schedule import Fault, Moment, Schedule
from tests.faults.weakened import weaken

COMMIT = re.compile(r"checkpoint_(\d{9})")
_WRITE = re.compile(r"/checkpoint_(\d{9})[^/]*/")
_STOPPED_S = 2
_PATIENCE_S = 30
_ROOM = 8192
"""Bytes that a file may have on the full disk."""

_loss = gpt.loss


def GPT(faults: str, **hyperparameters: Any) -> nn.Module:
    """The built-in model; in a worker, with the schedule armed."""
    assignment = current.get()
    if isinstance(assignment, Assignment):
        global _loss
        saboteur = Saboteur(Path(faults), Path(assignment.order.folder), dist.get_rank())
        saboteur.wrap()
        _loss = saboteur.loss
        saboteur.reached("before_first_step", 0)
    return gpt.GPT(**hyperparameters)


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The built-in loss, during which a step may be struck."""
    return _loss(model, batch)


def schedule_folder(folder: Path, schedule: Schedule) -> Path:
    """Write a schedule where its saboteurs find it."""
    folder.mkdir(parents=True)
    (folder / "schedule.json").write_text(json.dumps(schedule.to_json()))
    return folder


def spent(folder: Path) -> set[int]:
    """Which faults have happened, by their place in the schedule."""
    return {int(marker.name.partition("-")[2]) for marker in folder.glob("spent-*")}


def damage(commit: Path, fault: Fault) -> None:
    """Flip one bit of one file of a commit, or cut the file short."""
    files = sorted(file for file in commit.rglob("*") if file.is_file() and file.stat().st_size)
    victim = commit / fault.file if fault.file else files[fault.draw % len(files)]
    data = bytearray(victim.read_bytes())
    place = (fault.draw >> 8) % len(data)
    if fault.kind == "cut_checkpoint":
        del data[place:]
    else:
        data[place] ^= 1 << fault.draw % 8
    victim.write_bytes(bytes(data))


class Saboteur:
    """One worker process with a schedule."""

    def __init__(self, folder: Path, run: Path, rank: int) -> None:
        self._folder = folder
        self._run = run
        self._rank = rank
        self._schedule = Schedule.from_json(json.loads((folder / "schedule.json").read_text()))
        self._step = -1
        self._collectives = 0
        self._writes: dict[int, int] = {}

    def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """A forward pass; what strikes a step strikes in the middle of it."""
        losses = gpt.loss(model, batch)
        self.reached("step", self._step)
        return losses

    def reached(
        self,
        moment: Moment,
        step: int,
        *,
        place: int | None = None,
        tear: Callable[[], None] = lambda: None,
    ) -> None:
        """Cause whatever is due here."""
        for index, fault in enumerate(self._schedule.faults):
            if (fault.moment, fault.step, fault.rank) != (moment, step, self._rank):
                continue
            if place is not None and place < fault.draw % 3:
                continue
            try:
                (self._folder / f"spent-{index}").touch(exist_ok=False)
            except FileExistsError:
                continue
            if fault.kind.startswith("kill"):
                tear()
            self._cause(index, fault)

    def _cause(self, index: int, fault: Fault) -> None:
        match fault.kind:
            case "kill_worker":
                os.kill(os.getpid(), signal.SIGKILL)
            case "kill_driver":
                whole = self._folder / f"whole-{index}"
                whole.write_text(fault.kind)
                whole.rename(self._folder / f"request-{index}")
                # Ray ends this process when its owner is gone.
                time.sleep(_PATIENCE_S)
            case "fill_disk":
                ahead = self._run / "ledger.ahead.jsonl"
                room = ahead.stat().st_size + 100 if fault.moment == "ledger" else _ROOM
                # Python ignores SIGXFSZ, so a write fails as it does on a full disk.
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
            case "flip_checkpoint" | "cut_checkpoint":
                damage(max(e for e in self._run.iterdir() if COMMIT.fullmatch(e.name)), fault)
                if fault.moment != "resume":
                    os.kill(os.getpid(), signal.SIGKILL)
            case "stop_worker":
                subprocess.Popen(["sh", "-c", f"sleep {_STOPPED_S}; kill -CONT {os.getpid()}"])
                os.kill(os.getpid(), signal.SIGSTOP)

    def wrap(self) -> None:
        """Put this process's own functions under watch, and take out what a control takes out."""
        if self._schedule.weakened:
            weaken()
        self._wrap_step()
        self._wrap_collectives()
        self._wrap_files()
        self._wrap_ledger()
        self._wrap_restore()

    def _wrap_step(self) -> None:
        queue = GovernedStep.queue

        def noting(itself: GovernedStep, batch: Any, loss_fn: Any, **settings: Any) -> Any:
            self._step, self._collectives = batch.step, 0
            return queue(itself, batch, loss_fn, **settings)

        GovernedStep.queue = noting

    def _wrap_collectives(self) -> None:
        for name in ("all_reduce", "all_gather"):
            collective = getattr(dist, name)

            def within(*args: Any, collective: Any = collective, **kwargs: Any) -> Any:
                work = collective(*args, **kwargs)
                self.reached("collective", self._step, place=self._collectives)
                self._collectives += 1
                return work

            setattr(dist, name, within)

    def _wrap_files(self) -> None:
        fsync, rename = os.fsync, os.rename

        def within_write(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if (found := _WRITE.search(path)) and os.path.isfile(path):
                step = int(found[1])
                place = self._writes.get(step, 0)
                self._writes[step] = place + 1
                self.reached(
                    "write",
                    step,
                    place=place,
                    tear=lambda: os.truncate(path, os.path.getsize(path) // 2),
                )
            fsync(descriptor)

        def around_rename(source: Any, target: Any, **kwargs: Any) -> None:
            found = COMMIT.fullmatch(Path(target).name)
            if found:
                self.reached("before_rename", int(found[1]))
            rename(source, target, **kwargs)
            if found:
                self.reached("after_rename", int(found[1]))

        os.fsync, os.rename = within_write, around_rename

    def _wrap_ledger(self) -> None:
        append = WriteAhead.append

        def within_append(itself: WriteAhead, leaf: Any, norms: Any = None) -> None:
            def tear() -> None:
                with (self._run / "ledger.ahead.jsonl").open("ab") as file:
                    file.write(leaf.line[: len(leaf.line) // 2])

            self.reached("ledger", leaf.step, tear=tear)
            append(itself, leaf, norms)

        WriteAhead.append = within_append

    def _wrap_restore(self) -> None:
        restore = TrainingState.restore

        def while_resuming(itself: TrainingState, *args: Any, **kwargs: Any) -> Any:
            self.reached("resume", 0)
            return restore(itself, *args, **kwargs)

        TrainingState.restore = while_resuming
