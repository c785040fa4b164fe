"""Replays on a real cluster, with two ranks and with ranks that came and went."""

from __future__ import annotations

from pathlib import Path

import pytest

from govray.checkpoint import commit_folder
from govray.governance.attestation import model_folder
from govray.governance.record.ledger import Leaf, read_leaves
from govray.train.driver.trainer import from_experiment
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.recorded_inputs import recorded_inputs
from govray.train.inputs.run_record import read_record
from govray.train.replay import replayed_run as replaying
from govray.train.replay.replayed_run import commits, replay
from govray.train.replay.segments import Segment
from tests.support.deployment import Deployment

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]


@pytest.fixture(scope="module")
def run(cluster: None, deployment: Deployment) -> Path:
    """Six steps, two workers, a checkpoint every two; trained, not attested."""
    kept = {"every_steps": 2, "save_trial_latest": 3}
    value = deployment.experiment(name="two-ranks", max_steps=6, checkpoint=kept)
    return Path(from_experiment(parse_experiment(value, where="test")).train())


def test_a_whole_replay_is_identical(run: Path) -> None:
    outcome = replay(run)
    assert outcome.identical
    assert outcome.whole
    assert outcome.checkpoints == (2, 4, 6)
    assert outcome.differences == ()


def test_some_steps_are_replayed_from_a_kept_checkpoint(run: Path) -> None:
    outcome = replay(run, steps=(2, 4))
    assert outcome.identical
    assert (outcome.start, outcome.stop, outcome.checkpoints) == (2, 4, (4,))


def test_a_replay_follows_the_recorded_world_sizes(run: Path) -> None:
    """A run that went on with one worker after step 2 is made, and then replayed."""
    inputs = recorded_inputs(run, read_record(run))
    order = replaying._order(inputs, inputs.record.plan, run.parent)
    replaying._begin(order, inputs, None)
    for part in (Segment(0, 2, 2), Segment(2, 6, 1)):
        replaying._fit(order, inputs, part, lambda step, metrics: None)
    resized = Path(order.folder)
    outcome = replay(resized)
    assert outcome.identical
    last = commit_folder.load(commits(resized / "replays" / outcome.run)[6])
    leaves = read_leaves(last.files["ledger.jsonl"])
    assert [leaf.world_size for leaf in leaves if isinstance(leaf, Leaf)] == [2, 2, 1, 1, 1, 1]
    # Not what two workers give: sums over ranks are rounded in another order.
    assert (
        last.files[model_folder.WEIGHTS]
        != commit_folder.load(commits(run)[6]).files[model_folder.WEIGHTS]
    )
