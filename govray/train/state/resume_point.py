"""Where a run resumes: after a crash, and after a rollback on a new branch of its ledger.

Both are one resolution, from what is recorded. A run resumes from its newest commit, unless its
recorded profiles led to a rollback without a branch. Then it resumes from the newest commit at or
before the step that the rollback goes back to. So a rollback survives any crash: every resume finds
it again.

Every rank that decides on a rollback raises `RolledBack` after the commit in flight has ended. Ray
starts the workers again, and they resolve anew. Commits beyond the resolved step are put aside when
the new attempt begins (``committer.py``).

``governance/record/incidents.py`` decides on rollbacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from govray.errors import GovrayError, InfrastructureFailed
from govray.governance.record.entropy_profile import EntropyProfile
from govray.governance.record.gates import on_lineage
from govray.governance.record.ledger import AnyLeaf, Leaf, read_leaves
from govray.storage.place import Place
from govray.train.checkpoint import commit_folder as checkpoint
from govray.train.checkpoint.commit_folder import Folder
from govray.train.inputs import gating
from govray.train.inputs.gating import Decisions
from govray.train.inputs.order import Order
from govray.train.run_folder.ledger_wal import by_step, recorded_leaves
from govray.train.state import snapshot
from govray.train.state.carried_governance import read_ledger


class RolledBack(InfrastructureFailed):
    """The run continues from an earlier commit, on a new branch. Every rank raises it."""


@dataclass(frozen=True)
class Resumption:
    """Where a run continues.

    Attributes:
        checkpoint: The commit that holds the state, if any.
        step: The first step to run.
    """

    checkpoint: Folder | None
    step: int
    decisions: Decisions


def resolve(run_folder: Place, order: Order) -> Resumption:
    """Where the run in this folder resumes, under its order.
    Raises ``Refused``: what it recorded is not the story of a run under this policy."""
    commit, step = snapshot.latest(run_folder) or (None, 0)
    decided = gating.resumed(run_folder, commit)
    if order.monitored is None:
        return Resumption(commit, step, decided.joined(order.decisions))
    leaves = known_leaves(run_folder, commit)
    told = order.monitored.follow(leaves)
    if told.pending is not None:
        commit, step = snapshot.latest(run_folder, at_most=told.pending) or (None, 0)
        told.reach(told.branch + 1, step)
        decided = replace(decided, until=step)
    profiles = tuple(leaf for leaf in leaves if isinstance(leaf, EntropyProfile))
    return Resumption(
        commit,
        step,
        replace(
            decided,
            gates=tuple(gate for gate in decided.gates if gate.legal),
            starts=tuple(told.starts),
            profiles=profiles,
        ),
    )


def known_leaves(run_folder: Place, commit: Folder | None) -> tuple[AnyLeaf, ...]:
    """All that a run recorded, from its write-ahead file or, if that is lost, from a commit."""
    held: tuple[AnyLeaf, ...] = ()
    if commit is not None:
        # The workers that load a damaged commit find the damage and put it aside.
        try:
            held = read_leaves(read_ledger(checkpoint.open_commit(commit)))
        except InfrastructureFailed:
            raise
        except GovrayError:
            pass
    both = by_step(held) | by_step(recorded_leaves(run_folder))
    return tuple(leaf for place in sorted(both) for leaf in both[place])


def on_one_branch(leaves: Iterable[AnyLeaf]) -> tuple[AnyLeaf, ...]:
    """The leaves that a state rests on, numbered as in a run without rollbacks: all in branch 0.
    Leaves that a rollback left behind are not among them."""
    found: list[AnyLeaf] = []
    branch = 0
    for leaf in leaves:
        if leaf.branch > branch:
            branch = leaf.branch
            found = [each for each in found if each.step < leaf.step]
        found.append(leaf.model_copy(update={"branch": 0}))
    return tuple(found)


def as_replayed(decided: Decisions, leaves: Iterable[AnyLeaf]) -> Decisions:
    """A run's decisions, for a replay: it has one branch and measures nothing."""
    starts: dict[int, int] = {}
    for leaf in leaves:
        if isinstance(leaf, Leaf):
            starts.setdefault(leaf.branch, leaf.step)
    firsts = tuple(starts[branch] for branch in sorted(starts)) or (0,)
    return Decisions(decided.until, on_lineage(decided.gates, firsts))
