"""A replay on a real cluster, of a run whose ranks came and went.

`test_line.py` replays one whose two ranks stayed, and `test_storage_on_cluster.py` a part of one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from govray.checkpoint import commit_folder
from govray.governance.attestation import model_folder
from govray.governance.record.ledger import Leaf, read_leaves
from govray.train.inputs.recorded_inputs import recorded_inputs
from govray.train.inputs.run_record import read_record
from govray.train.replay import replayed_run as replaying
from govray.train.replay.replayed_run import commits, replay
from govray.train.replay.segments import Segment

pytestmark = [pytest.mark.story, pytest.mark.usefixtures("cluster")]


def test_a_replay_follows_the_recorded_world_sizes(finished: Path) -> None:
    """A run that went on with one worker after step 2 is made, and then replayed."""
    inputs = recorded_inputs(finished, read_record(finished))
    order = replaying._order(inputs, inputs.record.plan, finished.parent)
    replaying._begin(order, inputs, None)
    for part in (Segment(0, 2, 2), Segment(2, 12, 1)):
        replaying._fit(order, inputs, part, lambda step, metrics: None)
    resized = Path(order.folder)
    outcome = replay(resized)
    assert outcome.identical
    assert outcome.whole
    assert outcome.differences == ()
    last = commit_folder.load(commits(resized / "replays" / outcome.run)[12])
    leaves = read_leaves(last.files["ledger.jsonl"])
    assert [leaf.world_size for leaf in leaves if isinstance(leaf, Leaf)] == [2] * 2 + [1] * 10
    # Not what two workers give: sums over ranks are rounded in another order.
    assert (
        last.files[model_folder.WEIGHTS]
        != commit_folder.load(commits(finished)[12]).files[model_folder.WEIGHTS]
    )
