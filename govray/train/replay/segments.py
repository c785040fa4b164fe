"""Which steps a replay runs, from which state, with how many workers. Pure.

Bits depend on the world size, so a replay follows the recorded ones. It runs in segments of equal
world size, each from the state that the last one committed. A run that restarted with the same
number of workers needs no new segment, for it resumes byte for byte.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from govray.errors import CouldNotCheck, UsageError
from govray.governance.record.ledger import AnyLeaf, Leaf
from govray.train.attest.audited_model import standing_leaves


@dataclass(frozen=True)
class Segment:
    """Steps ``start … stop-1``, all with ``world_size`` workers."""

    start: int
    stop: int
    world_size: int


def segments(leaves: Iterable[AnyLeaf], start: int, stop: int) -> tuple[Segment, ...]:
    """The segments of steps ``start … stop-1``, in order; they leave no step out.
    Raises ``CouldNotCheck``: a step has no leaf, so its world size is unknown."""
    sizes = {leaf.step: leaf.world_size for leaf in last_branch(leaves)}
    found: list[Segment] = []
    for step in range(start, stop):
        if step not in sizes:
            raise CouldNotCheck("the ledger has no leaf of this step", where=f"step {step}")
        if found and found[-1].world_size == sizes[step]:
            found[-1] = Segment(found[-1].start, step + 1, sizes[step])
        else:
            found.append(Segment(step, step + 1, sizes[step]))
    return tuple(found)


def last_branch(leaves: Iterable[AnyLeaf]) -> tuple[Leaf, ...]:
    """The leaves of steps that the final state rests on, in the order of steps.
    After a rollback a step has a leaf on each branch; the newest counts."""
    newest = standing_leaves(leaves)
    return tuple(newest[step] for step in sorted(newest))


def parse_steps(text: str) -> tuple[int, int]:
    """``A:B`` as two numbers: from the state before step A to the state before step B."""
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise UsageError(
            f"{text!r} is not a range of steps",
            where="--steps",
            do="Give A:B with A < B, such as 100:200, for steps 100 to 199",
        )
    return int(first), int(last)


def start_and_stop(wanted: tuple[int, int] | None, kept: Collection[int]) -> tuple[int, int]:
    """Where a replay starts, and where it stops.

    Args:
        wanted: The requested range; the whole run by default.
        kept: The steps whose commits are whole, by the step that comes next.

    Returns:
        The newest kept step at or before the wanted start, and the wanted stop. Step 0 needs no
        commit.

    Raises:
        CouldNotCheck: No kept commit could be compared with a replay.
    """
    newest = max(kept, default=None)
    if newest is None:
        raise CouldNotCheck(
            "the run has no whole checkpoint to compare with", do="Let it commit one first"
        )
    first, last = wanted or (0, newest)
    if last > newest:
        raise UsageError(
            f"the run's newest whole checkpoint is of step {newest}, before {last}",
            where=f"--steps {first}:{last}",
            do=f"Checkpoints are kept of: {listed(kept)}",
        )
    return max((step for step in kept if step <= first), default=0), last


def listed(steps: Collection[int], shown: int = 12) -> str:
    """Steps for people: the last ones, if there are many."""
    names: Sequence[str] = [str(step) for step in sorted(steps)]
    return ", ".join(["…", *names[-shown:]] if len(names) > shown else names) or "none"
