"""Where a run resumes: after a crash, and after a rollback on a new branch of its ledger.

Both are one resolution, from what is recorded. A run resumes from its newest commit. Where there is
a register, it is the last one that the register has (`run_folder/register_posts.py`). Recorded
profiles may have led to a rollback without a branch. Then the run resumes from the newest commit at
or before the step that the rollback goes back to. So a rollback survives any crash: every resume
finds it again.

Every rank that decides on a rollback raises `RolledBack` after the commit in flight has ended. Ray
starts the workers again, and they resolve anew. Commits beyond the resolved step are put aside when
the new attempt begins (``committer.py``).

``governance/record/incidents.py`` decides on rollbacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from govray.errors import GovrayError, InfrastructureFailed, Refused
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
from govray.train.run_folder.register_posts import RegisterPosts, register_of
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
    register = register_of(order.run_id)
    commit, step = newest(run_folder, register) or (None, 0)
    decided = gating.resumed(run_folder, commit)
    if order.monitored is None:
        return Resumption(commit, step, decided.joined(order.decisions))
    leaves = known_leaves(run_folder, commit)
    told = order.monitored.follow(leaves)
    if told.pending is not None:
        commit, step = newest(run_folder, register, at_most=told.pending) or (None, 0)
        told.reach(told.branch + 1, step)
        if register is not None:
            _register_rollback(register, commit, step, told.branch)
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


def newest(
    run_folder: Place, register: RegisterPosts | None, *, at_most: int | None = None
) -> tuple[Folder, int] | None:
    """The commit that a run resumes from, and its next step; None at the beginning.

    ``at_most``: of those whose next step is that or before.

    Raises:
        Refused: The commit that is registered is not in the folder.
    """
    if register is None:
        return snapshot.latest(run_folder, at_most=at_most)
    last = register.standing(at_most=at_most)
    if last.commit is None:
        return None
    for step, folder in snapshot.committed_folders(run_folder):
        if step == last.step and _digest(folder) == last.commit:
            return folder, step
    raise Refused(
        f"the commit of step {last.step} that is registered is not there",
        where=f"run {run_folder.name}",
        do=f"Restore the folder with the commit {last.commit}, or submit again",
    )


def _digest(folder: Folder) -> str | None:
    """The digest of a commit that has all its files; None of one that has not."""
    try:
        return checkpoint.open_commit(folder).digest
    except InfrastructureFailed:
        raise
    except GovrayError:
        return None


def _register_rollback(
    register: RegisterPosts, commit: Folder | None, step: int, branch: int
) -> None:
    """Tell that a run goes back to a commit. Its ledger keeps the leaves that it leaves behind."""
    last = register.standing()
    register.committed(
        branch=branch,
        step=step,
        commit=_digest(commit) if commit is not None else None,
        size=last.ledger_size,
        root=last.ledger_root,
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
