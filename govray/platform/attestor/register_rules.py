"""What the register takes: pure decisions over what it has and what comes.

A post extends the last one of its run, whatever attempt that was of. Two processes that post as one
attempt branch sooner or later: one of them counts or continues from what the other did not post. So
a branch flags the attempt. What was posted twice, to the letter, is one post.

A refused answer says which rule refused, and repeats nothing but numbers and digests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from govray.governance.submission.register_forms import AttemptForm, CommitPosition
from govray.platform.attestor.register_tables import Accepted, Attempt, Posted
from govray.train.run_folder.run_names import is_trial_of

MOST_POSTS, MOST_RUNS = 100_000, 10_000
"""Posts of an attempt about one run, and runs of one submission."""

NOWHERE = CommitPosition()
"""Where a run stands that has no commit."""


@dataclass(frozen=True)
class NotTaken:
    """Why something is not taken. ``branches``: two processes post as one attempt."""

    why: str
    branches: bool = False


def extends(last: Posted | None, new: Posted) -> str | None:
    """Why a post does not extend the last one of its run; None if it does.

    The step never falls within a branch, and the branch and the ledger never do. A commit goes on
    from the last one. An attempt starts once, and nothing follows its end. No older attempt posts.
    """
    if last is None or new.attempt > last.attempt:
        if new.kind != "started":
            return "an attempt's first post says that it started"
    elif new.attempt < last.attempt:
        return f"attempt {last.attempt} has posted since"
    elif last.kind == "ended":
        return "the attempt has ended"
    elif new.kind == "started":
        return "the attempt has started already"
    elif last.kind == "finished" and new.kind != "ended":
        return "the run has finished"
    due = last.sequence + 1 if last and last.attempt == new.attempt else 0
    if due >= MOST_POSTS:
        return f"the attempt has posted {MOST_POSTS} times: let the run commit less often"
    if new.sequence != due:
        return f"post {due} is due, and this is post {new.sequence}"
    before = last.position if last else NOWHERE
    if new.previous != before.commit:
        return "it goes on from another commit than the last"
    if new.kind != "committed":
        return None if new.position == before else "only a commit moves a run"
    return _moves(before, new.position)


def _moves(before: CommitPosition, after: CommitPosition) -> str | None:
    if (after.commit is None) != (after.step == 0):
        return "a commit has a digest, and a run that begins again has none"
    if (after.branch, after.step) < (before.branch, before.step):
        return (
            f"step {after.step} of branch {after.branch} lies before step {before.step} of "
            f"branch {before.branch}"
        )
    if after.ledger_size < before.ledger_size:
        return f"its ledger has {after.ledger_size} leaves, fewer than {before.ledger_size}"
    if (after.ledger_root is None) != (after.ledger_size == 0):
        return "a ledger with leaves has a root, and an empty one has none"
    if after.ledger_size == before.ledger_size and after.ledger_root != before.ledger_root:
        return "its ledger has as many leaves as before, and others"
    return None


def takes(
    attempts: Sequence[Attempt], own: Attempt, last: Posted | None, same: Posted | None, new: Posted
) -> NotTaken | None:
    """Why a post is refused; None if it is taken, or was before.

    Args:
        attempts: Those of its submission, by number.
        own: The one whose secret came with it.
        last: The last post of its run, if any.
        same: What the attempt has posted at this place in its sequence, if anything.
    """
    newest = attempts[-1].number
    if own.flagged is not None:
        return NotTaken(own.flagged, branches=True)
    if own.number != newest:
        return NotTaken(f"attempt {newest} was opened since", branches=True)
    if same is not None:
        if repeats(same, new):
            return None
        return NotTaken(f"two different posts are number {new.sequence}", branches=True)
    why = extends(last, new)
    if why is None:
        return None
    before = last.position if last else NOWHERE
    due = last.sequence + 1 if last and last.attempt == new.attempt else 0
    return NotTaken(why, branches=(new.sequence, new.previous) != (due, before.commit))


def belongs(accepted: Accepted, run: str) -> bool:
    """Whether a submission may post of a run of this name: its own, or a trial of its search.
    All models lie side by side, so no submission names another's run."""
    return run == accepted.run or (accepted.kind == "tune" and is_trial_of(accepted.run, run))


def repeats(taken: Posted, new: Posted) -> bool:
    """Whether a post is one that was taken already. Only the clock differs."""
    return taken == new.model_copy(update={"at": taken.at})


def otherwise(
    accepted: Accepted | None, attempts: Sequence[Attempt], new: AttemptForm
) -> str | None:
    """Why a job is not what was accepted; None if it is. All attempts are set up alike."""
    if accepted is None or new.facts != accepted.facts_digest:
        return "its job would start from other facts than were accepted"
    if attempts and new.setup != attempts[0].setup:
        return "its job would have another image or other packages than the attempts before"
    return None


def opens(attempts: Sequence[Attempt], new: AttemptForm, *, posted: bool) -> str | None:
    """Why an attempt cannot be opened; None if it can, or is already.

    Numbers only rise. The newest may be opened again with another secret until it has posted: who
    opened it before may have died before the job was told.

    Args:
        attempts: Those of the submission, by number.
        posted: Whether the newest of them has posted.
    """
    newest = attempts[-1] if attempts else None
    if any(each.secret == new.secret and each.number != new.number for each in attempts):
        return "another attempt has this secret"
    if newest is None or new.number > newest.number:
        return None
    if new.number < newest.number:
        return f"attempt {newest.number} was opened since"
    if posted and newest.secret != new.secret:
        return f"attempt {new.number} has posted with another secret"
    return None
