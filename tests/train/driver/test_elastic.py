"""A run that loses a node and gets another: 2 → 1 → 2 workers, beside one that always has one."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

import govray
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.ledger import Leaf, read_leaves
from govray.train.inputs.run_record import read_record
from govray.train.run_folder import events
from govray.train.state import snapshot
from tests.support.elastic_driver import EVERY, STEPS
from tests.support.forked_workers import Forked
from tests.support.runs_apart import RELATIVE, apart, ran


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, forked: Forked) -> Path:
    """What the driver left; one cluster start for all tests."""
    folder = tmp_path_factory.mktemp("elastic")
    driver = subprocess.run(
        [sys.executable, "-m", "tests.support.elastic_driver", str(folder), forked.python],
        timeout=560,
        capture_output=True,
        text=True,
        check=False,
    )
    assert driver.returncode == 0, driver.stderr[-4000:]
    return folder


def leaves_of(run: Path) -> list[Leaf]:
    found = read_leaves((run / "model" / "governance" / "ledger.jsonl").read_bytes())
    return [each for each in found if isinstance(each, Leaf)]


def plan_of(run: Path) -> BatchPlan:
    return read_record(run).plan


def test_the_ledger_says_which_step_had_how_many_workers(folder: Path) -> None:
    worlds = [leaf.world_size for leaf in leaves_of(folder / "runs" / "elastic")]
    changes = [worlds[0], *(after for before, after in pairwise(worlds) if after != before)]
    assert changes == [2, 1, 2]
    assert min(Counter(worlds).values()) >= 1
    assert {leaf.world_size for leaf in leaves_of(folder / "runs" / "fixed")} == {1}


def test_every_row_of_the_plan_is_used_once(folder: Path) -> None:
    run = folder / "runs" / "elastic"
    plan = plan_of(run)
    leaves = leaves_of(run)
    assert [leaf.step for leaf in leaves] == list(range(STEPS))
    for leaf in leaves:
        planned = plan.rows(leaf.step)
        assert leaf.streams == {
            stream: (span.start, span.stop) for stream, span in plan.positions(leaf.step).items()
        }
        rows = Counter(corpus for stream in planned.values() for _, corpus, _ in stream)
        assert {name: use.rows for name, use in leaf.corpora.items()} == rows


def test_the_write_ahead_file_holds_what_the_run_went_on_with(folder: Path) -> None:
    run = folder / "runs" / "elastic"
    signed = (run / "model" / "governance" / "ledger.jsonl").read_bytes()
    assert (run / "ledger.ahead.jsonl").read_bytes() == signed


def test_two_runs_differ_in_world_sizes_and_rounding_only(folder: Path) -> None:
    """The control: the weights of an earlier step are much farther away."""
    elastic, fixed = folder / "runs" / "elastic", folder / "runs" / "fixed"
    assert plan_of(elastic) == plan_of(fixed)
    for ours, theirs in zip(leaves_of(elastic), leaves_of(fixed), strict=True):
        assert ours.model_copy(update={"world_size": 1}) == theirs
    assert apart(elastic / "model", fixed / "model") <= RELATIVE
    (last, _), (before, earlier), *_ = snapshot.committed_folders(fixed)
    assert last == STEPS > before
    assert apart(elastic / "model", earlier) > 10 * RELATIVE


def test_the_loss_of_every_step_is_the_fixed_run_s(folder: Path) -> None:
    ours, theirs = (dict(ran(folder, name)) for name in ("elastic", "fixed"))
    assert sorted(ours) == sorted(theirs) == list(range(STEPS))
    assert max(abs(ours[step] - theirs[step]) / theirs[step] for step in ours) <= RELATIVE
    assert theirs[0] - theirs[STEPS - 1] > 1  # the control: there was something to learn


def test_a_loss_repeats_steps_and_a_growth_does_not(folder: Path) -> None:
    times = Counter(step for step, _ in ran(folder, "elastic"))
    again = {step for step, count in times.items() if count > 1}
    assert len(again) <= EVERY  # none, where the node went between a commit and the next step
    leaves = leaves_of(folder / "runs" / "elastic")
    assert {leaves[step].world_size for step in again} == {1}


def test_the_event_log_tells_of_the_loss_and_of_each_size(folder: Path) -> None:
    log = events.read(folder / "runs" / "elastic")
    attempts = [each for each in log if isinstance(each, events.AttemptStarted)]
    assert [each.world_size for each in attempts] == [2, 1, 2]
    leaves = leaves_of(folder / "runs" / "elastic")
    assert [leaves[each.step].world_size for each in attempts] == [
        each.world_size for each in attempts
    ]
    [lost] = [each for each in log if isinstance(each, events.Failed)]
    assert (lost.failure, lost.decision) == ("infrastructure", "restart")
    # Where the cluster's view is quicker than the health check, the loss is a wish for one, too.
    wanted = [each.after for each in log if isinstance(each, events.ResizeWanted)]
    assert wanted in ([2], [1, 2])


def test_the_verifier_accepts_both(folder: Path) -> None:
    root = folder / "deployment" / "root.json"
    elastic, fixed = (
        govray.verify(folder / "runs" / name / "model", trust_root=root)
        for name in ("elastic", "fixed")
    )
    assert elastic.attestation.levels == fixed.attestation.levels
    for group in ("embedding", "block.1"):
        ours, theirs = elastic.coverage["permissive", group], fixed.coverage["permissive", group]
        assert (ours.tokens, ours.records, ours.steps) == (
            theirs.tokens,
            theirs.records,
            theirs.steps,
        )
