"""Where the seconds of a short run go: from the command, or from a submission, to its model.

``train`` is ``govray train`` on this machine, which starts Ray. ``queue`` is a submission, with a
head of Ray and ``govray queue run`` at work already. Each is a run of few steps on two workers. A
stage is seen up to a tenth of a second late. Processor seconds are those of all processes since
then: on a machine with other work, they say more than the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import yaml
from sqlmodel import Session

from benchmarks.command import positive, run
from benchmarks.one_corpus import OneCorpus
from benchmarks.process_tree import processor_seconds, tree
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.database import open_store
from govray.platform.store.queue_entries import submit
from govray.train.run_folder.clock import now

STAGES = ("process", "driver", "attempt", "workers", "step", "finished", "attested")
"""The driver's process; all inputs verified; an attempt; its two workers; a step; and the end."""
_KINDS = {"driverStarted": "driver", "attemptStarted": "attempt"}
_POLL_S, _PATIENCE_S = 0.1, 600.0
_BIN, _JOBS = Path(sys.executable).parent, Path(__file__).parents[1] / "jobs"

Figures = dict[str, tuple[float, float]]
"""Stage → seconds and processor seconds."""


def main(argv: list[str] | None = None) -> None:
    """Measure, and print a table and one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start_up", description=__doc__)
    parser.add_argument("--runs", type=positive, default=3, help="of each way; 3 by default")
    parser.add_argument("--ways", default="train,queue", help="both by default")
    options = parser.parse_args(argv)
    ways: dict[str, Callable[[Path], Figures]] = {"train": by_command, "queue": by_queue}
    found: dict[str, list[Figures]] = {way: [] for way in options.ways.split(",")}
    for way, figures in list(found.items()) * options.runs:
        with tempfile.TemporaryDirectory(prefix="start-", ignore_cleanup_errors=True) as folder:
            figures.append(ways[way](Path(folder)))
    report = {
        way: {
            stage: [round(median(each[stage][i] for each in figures), 1) for i in (0, 1)]
            for stage in STAGES
        }
        for way, figures in found.items()
    }
    print(f"{'':<10}" + "".join(f"{way:>10} s{'CPU s':>8}" for way in report))
    for stage in STAGES:
        cells = "".join("{:>12}{:>8}".format(*report[way][stage]) for way in report)
        print(f"{stage:<10}{cells}")
    print(json.dumps({"runs": options.runs, **report}))


def by_command(folder: Path) -> Figures:
    """A run by ``govray train``."""
    with process("govray", "train", experiment(folder)) as started:
        return watched(folder / "runs", started)


def by_queue(folder: Path) -> Figures:
    """A run by the queue, since its submission."""
    file, store = experiment(folder), f"sqlite:///{folder / 'store.db'}"
    port, *others = (free_port() for _ in range(3))
    (folder / "code").mkdir()
    (folder / "code" / "jobs").symlink_to(_JOBS)
    (folder / "runs").mkdir()
    queue = {"address": f"http://127.0.0.1:{port}", "storage": str(folder / "runs")}
    queue |= {"store": store, "working_dir": str(folder / "code")}
    settings = folder / "queue.yaml"
    settings.write_text(yaml.safe_dump({**queue, "pools": {"default": {"slots": 2}}}))
    engine = open_store(store, create=True)
    named = zip(("--port=", "--ray-client-server-port="), others, strict=True)
    ports = (f"--dashboard-port={port}", *(f"{name}{each}" for name, each in named))
    head = ("start", "--head", "--block", "--num-cpus=2", f"--temp-dir={folder / 'ray'}", *ports)
    with process("ray", *head) as started, process("govray", "queue", "run", str(settings)) as own:
        until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)), started, own)
        time.sleep(15)  # until all of the head is at rest
        text, by = Path(file).read_text(), ChangedBy(user="benchmark", at=now())
        with Session(engine) as session:
            submit(session, kind="train", name="short", project="p", config=text, slots=2, by=by)
            session.commit()
        return watched(folder / "runs", started, own)


def experiment(folder: Path) -> str:
    """A small deployment, and the file of an experiment over it."""
    made = OneCorpus.deploy(folder, 1 << 18)
    file = {
        "name": "short",
        "hyperparameters": {"blocks": 2, "width": 32, "context": 64},
        "data": {"corpora": str(made.corpora), "rows_per_step": {"everything": 4}},
        "governance": {"policy": str(made.policy), "trust_root": str(made.root)},
        "resources": {"num_workers": 2, "cpus_per_worker": 0.5},
        "max_steps": 8,
        "checkpoint": {"every_steps": 8},
        "storage_path": str(folder / "runs"),
        "attestation_key": str(made.key),
    }
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(file))
    return str(path)


def watched(runs: Path, *roots: subprocess.Popen[bytes]) -> Figures:
    """Look at a run's files and at the processes until the model is signed."""
    began, before = time.monotonic(), spent_by(roots)
    spent, seen = dict(before), dict[str, tuple[float, float]]()

    def look() -> bool:
        nonlocal spent
        spent |= {pid: used for pid, used in spent_by(roots).items() if used}
        used = sum(spent.values()) - sum(before.values())
        for stage in stages(runs, spent):
            seen.setdefault(stage, (time.monotonic() - began, used))
        return "attested" in seen

    until(look, *roots)
    return seen


def until(done: Callable[[], bool], *roots: subprocess.Popen[bytes]) -> None:
    """Look until it is so. A command that ends, or takes for ever, ends the benchmark."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > _PATIENCE_S or any(each.poll() for each in roots):
            raise SystemExit("a command failed, or takes too long")
        time.sleep(_POLL_S)


def stages(runs: Path, processes: Mapping[int, float]) -> Iterator[str]:
    """What the processes and a run's files show by now."""
    for each in processes:
        with suppress(OSError):
            words = Path(f"/proc/{each}/cmdline").read_bytes()
            if b"jobs/train.py" in words or b"govray\0train" in words:
                yield "process"
    for log in runs.glob("*/events.jsonl"):
        kinds = [json.loads(line)["kind"] for line in log.read_text().split("\n")[:-1]]
        yield from (_KINDS.get(kind, kind) for kind in kinds)
        if kinds.count("workerStarted") == 2:
            yield "workers"
    if any(each.stat().st_size for each in runs.glob("*/ledger.ahead.jsonl")):
        yield "step"


def spent_by(roots: Iterable[subprocess.Popen[bytes]]) -> dict[int, float]:
    """Process → its processor seconds, of those that run now."""
    return {pid: processor_seconds(pid) for root in roots for pid in tree(root.pid)}


@contextmanager
def process(name: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of this environment, ended with all that it started."""
    with tempfile.TemporaryFile() as said:
        command = [str(_BIN / name), *words]
        started = subprocess.Popen(command, stdout=said, stderr=said)  # noqa: S603
        try:
            yield started
        except SystemExit:
            said.seek(0)
            sys.stderr.buffer.write(said.read())
            raise
        finally:
            for pid in tree(started.pid):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            started.wait()


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    sys.exit(run(main))
