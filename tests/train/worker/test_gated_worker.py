"""A worker's run through an expiry, a crash behind it and a restart, without a cluster."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
import ray
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from govray.data.step_reader import StepRows
from govray.engine.model.gpt import GPT, loss
from govray.engine.model.layer_groups import layer_groups
from govray.engine.step import build_step
from govray.engine.steps.expiry import EndOfValidity, NoLongerValid
from govray.errors import InfrastructureFailed, RankFailed
from govray.governance.policy.route import Route
from govray.governance.record.batch_plan import BatchPlan, StreamCorpus, StreamPlan
from govray.governance.record.gates import Gate, read_gates
from govray.train.checkpoint import commit_folder
from govray.train.inputs.gating import GATES, UNDECIDED, Decisions, decisions, resumed
from govray.train.inputs.order import Assignment, Order
from govray.train.inputs.revocation_feed import credential_name
from govray.train.run_folder import events
from govray.train.run_folder.run_lock import begin_attempt
from govray.train.state.snapshot import latest
from govray.train.worker import run as worker
from govray.train.worker import run_start, run_terms
from govray.train.worker.recorder import Recorder
from govray.train.worker.run import Run
from tests.support import fake_device
from tests.support.committing import a_plan, an_experiment
from tests.support.manifests import corpus, make_manifest
from tests.support.ranks import RankPool

CPU = torch.device("cpu")
DIGEST = "sha256:" + "0" * 64
START = datetime(2026, 11, 1, tzinfo=UTC)
CONTEXT, STEPS, GATED_AT = 4, 8, 3
COMMITTED, CRASH = 4, 6
LATER = {credential_name(name): START + timedelta(days=9) for name in ("one", "two")}
TENSORS = 2  # of a batch of text: inputs and targets
ROUTE = Route(weights=dict.fromkeys(("embedding", "block.0", "final_norm", "head"), 1.0))


class Rows:
    """One worker's shard: every row of the plan."""

    length = CONTEXT + 1

    def __init__(self, plan: BatchPlan, folder: Path) -> None:
        found = latest(folder)
        self.checkpoint, self.start_step = found or (None, 0)
        self.attempt = begin_attempt(folder, 0).attempt
        self.decisions = resumed(folder, self.checkpoint)
        self._plan = plan

    def steps(self) -> Iterator[StepRows]:
        for step in range(self.start_step, STEPS):
            yield rows_of(step, self._plan.rows(step)[ROUTE.digest], self.length)


def rows_of(step: int, rows: Any, length: int = CONTEXT + 1) -> StepRows:
    """What one worker reads of a step."""
    return StepRows(
        step=step,
        tokens=np.stack([_tokens(corpus, row) for _, corpus, row in rows]),
        lengths=np.full(len(rows), length),
        streams=(ROUTE.digest,) * len(rows),
        positions=np.arange(len(rows)),
        corpora=tuple(corpus for _, corpus, _ in rows),
    )


def _tokens(corpus: str, row: int) -> Any:
    seed = int.from_bytes(hashlib.sha256(f"{corpus} {row}".encode()).digest()[:4], "big")
    return np.random.default_rng(seed).integers(0, 17, CONTEXT + 1).astype(np.uint32)


class Clock:
    """Seconds since the epoch; a step a second."""

    def __init__(self) -> None:
        self.now = START.timestamp()

    def time(self) -> float:
        return self.now

    perf_counter = time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return told(monkeypatch)


def told(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that runs go by, as long as the patches last."""
    made = Clock()
    monkeypatch.setattr(worker, "time", made)
    monkeypatch.setattr(run_terms, "time", made)
    monkeypatch.setattr(worker.ray.train, "report", lambda *_, **__: None)
    return made


def plan(*excluded: str) -> BatchPlan:
    stream = StreamPlan(
        id=ROUTE.digest,
        profile="p",
        corpora=(StreamCorpus(corpus="one", rows=40), StreamCorpus(corpus="two", rows=40)),
        phase=0,
        quota=5,
    )
    return a_plan(seed=3, max_steps=STEPS, context=CONTEXT, excluded=excluded, streams=(stream,))


def start(
    folder: Path, device: torch.device = CPU, *, fused: bool = False, **changes: Any
) -> tuple[Run, torch.nn.Module]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT(vocabulary=17, context=CONTEXT, blocks=1, width=8, heads=2, dropout=0.1)
    folder.mkdir(exist_ok=True)
    fields: dict[str, Any] = {
        "run_id": "run-1",
        "folder": str(folder),
        "prepared": "",
        "manifest": make_manifest(corpus("a", [[7]], 7)),
        "manifest_digest": DIGEST,
        "plan": plan(),
        "routes": {ROUTE.digest: ROUTE},
        "groups": layer_groups(model),
        "policy_groups": {},
        "policy_digest": DIGEST,
        "expiries": {
            credential_name("one"): START + timedelta(days=9),
            credential_name("two"): START + timedelta(seconds=GATED_AT),
            "policy p": START + timedelta(days=9),
        },
        "experiment": an_experiment(checkpoint={"every_steps": COMMITTED}),
        "on_expiry": "gate",
    }
    order = Order(**fields | changes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    rows = Rows(order.plan, folder)
    rows.decisions = rows.decisions.joined(order.decisions)
    assignment = Assignment(order=order, shard=rows, on_step=lambda *_: None, device=device)
    return run_start.start_run(model, optimizer, assignment), model


def train(run: Run, clock: Clock, *, until: int = STEPS) -> None:
    for batch in run.batches():
        if batch.step == until:
            return
        clock.now += 1
        run.advance(batch, loss)


def weights(model: torch.nn.Module) -> dict[str, bytes]:
    return {name: p.detach().cpu().numpy().tobytes() for name, p in model.named_parameters()}


def ledger(folder: Path) -> bytes:
    found = latest(folder)
    assert found is not None
    assert found[1] == STEPS
    return commit_folder.load(found[0]).files["ledger.jsonl"]


@pytest.fixture
def undisturbed(tmp_path: Path, clock: Clock) -> tuple[Path, dict[str, bytes]]:
    folder = tmp_path / "undisturbed"
    run, model = start(folder)
    train(run, clock)
    return folder, weights(model)


def test_a_gate_is_an_event_in_the_log_and_in_the_commit(
    undisturbed: tuple[Path, dict[str, bytes]],
) -> None:
    folder, _ = undisturbed
    [event] = [each for each in events.read(folder) if isinstance(each, events.Gated)]
    # A step a second, from second 1 on: second 3 is that of step 2.
    assert event.gate == Gate(
        step=2,
        corpus="two",
        reason="expired",
        since="2026-11-01T00:00:03Z",
        time="2026-11-01T00:00:03Z",
    )
    found = latest(folder)
    assert found is not None
    assert read_gates(commit_folder.load(found[0]).files[GATES]) == (event.gate,)
    assert decisions(folder) == Decisions(STEPS, (event.gate,))
    lines = ledger(folder).split(b"\n")
    assert [b'"two"' in line for line in lines if b"worldSize" in line] == [
        step < 2 for step in range(STEPS)
    ]


@pytest.mark.parametrize("crash", [1, 2, 3, 6])
def test_what_was_recorded_repeats_after_a_crash(
    tmp_path: Path, clock: Clock, undisturbed: tuple[Path, dict[str, bytes]], crash: int
) -> None:
    """Before the gate, at it, and behind it, with and without a commit in between."""
    folder = tmp_path / "run"
    clock.now = START.timestamp()
    run, _ = start(folder)
    train(run, clock, until=crash)
    run._commits.settle(None)
    # Hours later for a run that had gated; no later than it was for one that had not.
    clock.now = START.timestamp() + (1e4 if crash > 2 else min(crash, 2) - _repeated(folder))
    run, model = start(folder)
    train(run, clock)
    assert weights(model) == undisturbed[1]
    assert ledger(folder) == ledger(undisturbed[0])
    assert len([e for e in events.read(folder) if isinstance(e, events.Gated)]) == 1


def test_a_late_step_is_recorded_before_the_gate_that_follows_it(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, model = start(tmp_path / "at once", fused=True)
    train(run, clock)
    clock.now = START.timestamp()
    noted: list[str] = []
    step_of, gated_of = Recorder.step, Recorder.gated

    def step(recorder: Recorder, leaf: Any, norms: Any) -> None:
        noted.append(f"step {leaf.step}")
        step_of(recorder, leaf, norms)

    def gated(recorder: Recorder, gates: Any) -> None:
        noted.extend(f"gate {gate.step}" for gate in gates)
        gated_of(recorder, gates)

    monkeypatch.setattr(Recorder, "step", step)
    monkeypatch.setattr(Recorder, "gated", gated)
    monkeypatch.setattr(run_start, "build_step", partial(build_step, late=True))
    run, late = start(tmp_path / "late", fused=True)
    train(run, clock)
    assert noted[:4] == ["step 0", "step 1", "gate 2", "step 2"]
    assert weights(late) == weights(model)
    assert ledger(tmp_path / "late") == ledger(tmp_path / "at once")


def _repeated(folder: Path) -> int:
    """How many recorded steps the next attempt runs again."""
    found = latest(folder)
    return decisions(folder).until - (found[1] if found else 0)


def test_a_lost_event_log_does_not_lift_a_gate(tmp_path: Path, clock: Clock) -> None:
    folder = tmp_path / "run"
    run, _ = start(folder)
    train(run, clock, until=5)
    run._commits.settle(None)
    (folder / events.FILE).unlink()
    clock.now = START.timestamp()  # nor does a clock that goes back
    run, _ = start(folder)
    train(run, clock)
    assert b'"two"' not in ledger(folder).split(b"\n")[-2]


def test_a_replay_follows_the_decisions_of_the_run(
    tmp_path: Path, clock: Clock, undisturbed: tuple[Path, dict[str, bytes]]
) -> None:
    clock.now = START.timestamp() + 1e8  # all has expired by now, the policy too
    run, model = start(tmp_path / "replay", decisions=decisions(undisturbed[0]))
    train(run, clock)
    assert weights(model) == undisturbed[1]
    assert ledger(tmp_path / "replay") == ledger(undisturbed[0])
    # The control: without them it stops at once.
    run, _ = start(tmp_path / "alone", decisions=UNDECIDED)
    with pytest.raises(NoLongerValid, match="policy p expired"):
        train(run, clock)


def test_a_policy_that_stops_stops_before_the_step(tmp_path: Path, clock: Clock) -> None:
    run, two_steps = start(tmp_path / "two", on_expiry="stop")
    train(run, clock, until=2)
    clock.now = START.timestamp()
    run, stopped = start(tmp_path / "run", on_expiry="stop")
    with pytest.raises(NoLongerValid, match="step 2: credential two expired"):
        train(run, clock)
    assert weights(stopped) == weights(two_steps)


def gated_and_crashed(folder: Path, device: torch.device) -> tuple[dict[str, bytes], bytes]:
    """Weights and ledger of a run that leaves a corpus out from step 3 on, and crashes at step 6.

    The gate falls when step 3's rows have been read, and, if there is a device, lie there.
    """
    end = EndOfValidity(credential_name("two"), "expired", START)
    with pytest.MonkeyPatch.context() as patch, sdpa_kernel(SDPBackend.MATH):
        clock = told(patch)
        run, _ = start(folder, device, expiries=LATER)
        for batch in run.batches():
            if batch.step == CRASH:
                break
            clock.now += 1
            run.report(run.step(batch, loss))
            if batch.step == GATED_AT - 1:
                until(lambda: device == CPU or len(fake_device.copies) >= TENSORS * (GATED_AT + 1))
                error = NoLongerValid.of((end,), step=GATED_AT, time=START)
                run._recorder.gated(run._gating.gate(GATED_AT, error, {}))
        run._commits.settle(None)
        run, model = start(folder, device, expiries=LATER)
        train(run, clock)
        return weights(model), ledger(folder)


def until(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + 60
    while not condition():
        assert monotonic() < deadline
        sleep(0.01)


def here_and_there(folder: Path) -> tuple[Any, Any, int, int]:
    device = fake_device.register()
    here = gated_and_crashed(folder / "here", CPU)
    there = gated_and_crashed(folder / "there", device)
    used = sum(each.work is None for each in fake_device.copies)
    return here, there, len(fake_device.copies), used


@pytest.mark.ranks
def test_gates_hold_for_batches_that_were_copied_ahead(process: RankPool, tmp_path: Path) -> None:
    [(here, there, copied, used)] = process.run(here_and_there, tmp_path)
    assert there == here
    leaves = [line for line in here[1].split(b"\n") if b"worldSize" in line]
    assert [b'"two"' in leaf for leaf in leaves] == [step < GATED_AT for step in range(STEPS)]
    # What was read ahead when the run crashed was not trained on. It is read again.
    assert used == TENSORS * (CRASH + 1 + STEPS - COMMITTED)
    assert copied > used


def failed_reading(folder: Path) -> tuple[str, int]:
    device = fake_device.register()
    read = Rows.steps

    def broken(rows: Rows) -> Iterator[StepRows]:
        for each in read(rows):
            if each.step == 5:
                raise OSError("the disk is gone")
            yield each

    with pytest.MonkeyPatch.context() as patch, sdpa_kernel(SDPBackend.MATH):
        clock = told(patch)
        patch.setattr(Rows, "steps", broken)
        run, _ = start(folder, device, expiries=LATER)
        with pytest.raises(RankFailed) as error:
            train(run, clock)
        run._commits.settle(None)
        return str(error.value), decisions(folder).until


@pytest.mark.ranks
def test_what_cannot_be_read_ahead_is_told_at_its_own_step(
    process: RankPool, tmp_path: Path
) -> None:
    [(said, done)] = process.run(failed_reading, tmp_path)
    assert said.startswith("rank 0, step 5: could not load its batch: OSError: the disk is gone")
    assert done == 5


def test_a_step_without_loss_targets_is_told_without_a_loss(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN, which it was, is no JSON: it ended the driver's log of steps, and all callbacks."""
    monkeypatch.setattr(Rows, "length", 1)
    run, _ = start(tmp_path / "run")
    told: list[Mapping[str, float]] = []
    run._on_step = lambda step, metrics: told.append(metrics)
    train(run, clock, until=2)
    assert [(each["step"], each["targets"]) for each in told] == [(0, 0), (1, 0)]
    assert not any("loss" in each for each in told)


def test_what_ray_kills_for_memory_is_tried_again(tmp_path: Path, clock: Clock) -> None:
    """A task of Ray Data that reads rows; it counted as the loop's own failure."""
    run, _ = start(tmp_path / "run")

    def killed(rows: Rows) -> Iterator[StepRows]:
        raise ray.exceptions.OutOfMemoryError("the node was running low on memory")
        yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rows, "steps", killed)
        with pytest.raises(InfrastructureFailed, match="low on memory"):
            train(run, clock)
