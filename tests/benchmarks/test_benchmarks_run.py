"""Each benchmark's command runs at its smallest size, and prints a table and one JSON line."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks import near_copies, recovery, sizes, startup_trial
from benchmarks.command import run
from benchmarks.process_tree import measured
from benchmarks.recovery_runs import RunShape
from benchmarks.research import memorization, texts
from benchmarks.research.texts import STDLIB, library
from benchmarks.step_options import QUICK
from govray.data.installed_python import SourceCorpus
from tests.support.ranks import RankPool

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest")


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some packages of the standard library: reading all takes longest."""
    folder = tmp_path_factory.mktemp("packages")
    for name in PACKAGES:
        shutil.copytree(STDLIB / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def library_of_few(few: Path) -> memorization.Texts:
    return library(few)


@pytest.fixture(autouse=True)
def small(
    few: Path, library_of_few: memorization.Texts, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Little text, one thread, phases in this process, and runs that are pretended."""
    for module in (memorization, texts):
        monkeypatch.setattr(module, "library", lambda: library_of_few)
    installed = [
        SourceCorpus(name, "PSF-2.0", "", tuple((p.name, p) for p in (few / name).rglob("*.py")))
        for name in PACKAGES
    ]
    monkeypatch.setattr(texts, "python_source", lambda: tuple(installed))
    for module in (near_copies, sizes):
        monkeypatch.setattr(module, "in_own_process", measured)
    monkeypatch.setattr(recovery, "start_ray", lambda num_cpus: None)
    monkeypatch.setattr(recovery, "run_governed", lambda deployment, *run: pretend(*run))
    monkeypatch.setattr(recovery, "run_bare", pretend)
    monkeypatch.setitem(startup_trial.SHAPES, "cpu", QUICK)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # the recovery changes it
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pretend(shape: RunShape, folder: Path) -> Path:
    """The events of a run of this shape that took no time: 0.1 s a step, 3 s from kill to step."""
    folder.mkdir(parents=True)
    kill, began = shape.kill_at, 0
    told: list[dict[str, Any]] = []
    if kill is not None:
        told = [_step(step, 0.1 * step, 1) for step in range(kill)]
        told.append({"event": "kill", "step": kill, "at": 0.1 * kill, "pid": 2})
        began = kill - kill % shape.commit_every
    told += [_step(step, 3.0 + 0.1 * step, 3) for step in range(began, shape.steps)]
    (folder / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in told))
    return folder / "events.jsonl"


def _step(step: int, at: float, pid: int) -> dict[str, Any]:
    return {"event": "step", "step": step, "at": at, "pid": pid, "reporting": 0.01}


Ran = Callable[..., dict[str, Any]]


@pytest.fixture
def report(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Run a benchmark's command line; its last line, after some others."""

    def report(name: str, words: str) -> dict[str, Any]:
        main = importlib.import_module(f"benchmarks.{name}").main
        monkeypatch.setattr(sys, "argv", [name, *words.split()])
        assert run(main) == 0
        *table, last = capfd.readouterr().out.splitlines()
        assert table
        found = json.loads(last)
        assert found
        return dict(found)

    return report


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("research.exposure", "--quick --seeds 1", marks=pytest.mark.story),
        pytest.param("near_copies", "--records 300 --questions 16", marks=pytest.mark.story),
        ("recovery", "--quick"),
        pytest.param("search", "--orders 2", marks=pytest.mark.story),
        ("sizes", "--step 300 --appends 5 --sizes 100 --runs 1 --no-corpora"),
        ("startup_trial", "--steps 3 --shapes cpu"),
        ("step", "--quick --cases allow_all --methods governed --pairs 1 --no-memory"),
        pytest.param("research.memorization", "--quick --seeds 1", marks=pytest.mark.story),
        pytest.param("research.null", "--runs 1 --power-runs 1", marks=pytest.mark.story),
        pytest.param("research.evasion", "--runs 1", marks=pytest.mark.story),
        pytest.param("research.operating_point", "--quick --seeds 1", marks=pytest.mark.story),
        pytest.param("research.record_scores", "--quick --seeds 1", marks=pytest.mark.story),
    ],
)
def test_it_prints_a_table_and_one_json_line(name: str, words: str, report: Ran) -> None:
    report(name, words)


def with_rank(function: Callable[..., Any], *args: Any) -> Any:
    return function(dist.get_rank(), *args)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("architectures", "--listed mixtral,olmo", marks=pytest.mark.story),
        pytest.param("streams", "--quick --adapters 3 --pairs 1", marks=pytest.mark.story),
        pytest.param("sharded_llama", "--quick", marks=pytest.mark.story),
    ],
)
def test_it_runs_on_ranks(
    name: str, words: str, report: Ran, two_ranks: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_ranks(function: Callable[..., Any], size: int, device: str, *args: Any) -> list[Any]:
        return two_ranks.run(with_rank, function, *args)

    monkeypatch.setattr(f"benchmarks.{name}.run_ranks", run_ranks)
    report(name, words)


@pytest.mark.story
def test_the_step_over_jax_and_the_service_run(tmp_path: Path, report: Ran) -> None:
    found = report("jax_step", "--quick --cases allow_all --methods governed --pairs 1")
    assert found["allow_all"]["ratio"] == pytest.approx(1.0)
    report("service", f"--quick --servers uvicorn --data {tmp_path}")
    assert report("service_rows", f"--quick --data {tmp_path}")["all runs"]["rows"] == 50


@pytest.mark.story
def test_reading_runs(cluster: None, report: Ran) -> None:
    report("reading", "--quick --pairs 1")


def test_a_wrong_option_is_named_before_anything_starts(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["step", "--rows", "1"])
    assert run(importlib.import_module("benchmarks.step").main) == 2
    assert capfd.readouterr().err.startswith("error: 2 rows are too few")
