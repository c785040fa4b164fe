"""Goodput: the share of time spent on useful steps, computed from measured parts.

A failure every N steps costs its recovery and the steps since the last commit. Commits cost the
time that they add to the loop. Nothing here is measured.
"""

from __future__ import annotations


def goodput(
    *,
    step_seconds: float,
    failure_every: int,
    recovery_seconds: float,
    commit_every: int,
    commit_seconds: float,
) -> float:
    """Useful seconds ÷ all seconds, in (0, 1].

    Args:
        step_seconds: Of one undisturbed step.
        failure_every: Steps from one failure to the next.
        recovery_seconds: From a failure to the end of the next step.
        commit_every: Steps between commits; a failure is as likely at one step as at another.
        commit_seconds: What one commit adds to the loop.
    """
    useful = failure_every * step_seconds
    repeated = (commit_every - 1) / 2 * step_seconds
    commits = failure_every / commit_every * commit_seconds
    return useful / (useful + commits + repeated + recovery_seconds)
