"""The write-ahead file of ledger leaves: canonical lines, in the order of the steps.

Rank 0 appends a step's leaf once the step is done, and behind it the gradient
norms if they were sampled. A step that is run again after a restart must
produce the leaf that is already there; if it does not, either the data, the
plan or the code changed under the run, and it stops. The world size may differ
after a resize, so it is left out of that comparison, and so are gradient norms:
they are measured, and not every device repeats a float. The lines of the step
that the run went on with take the place of those recorded before, here and in
the ledger.
This file is never signed: the driver signs the leaves of a committed checkpoint.
Lines lost with a machine cost nothing: their steps are in the checkpoint, or they
are run, and recorded, again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from govray.errors import Refused
from govray.governance.ledger import AnyLeaf, GradientNorms, Leaf, read_leaves

FILE = "ledger.ahead.jsonl"

_Recorded: TypeAlias = tuple[Leaf] | tuple[Leaf, GradientNorms]


class WriteAhead:
    """Appends leaves to one file; ``leaves`` are those of steps ``0 … next_step-1``, of both kinds.

    Args:
        path: The file, created if absent.
        leaves: Leaves of the checkpoint that the run resumes from.

    Raises:
        Refused: The file holds another leaf for a step of the checkpoint's.
    """

    def __init__(self, path: Path, leaves: tuple[AnyLeaf, ...]) -> None:
        self._path = path
        self._recorded = _by_step(_complete_lines(path))
        self._offsets: dict[int, int] = {}
        self.leaves = list(leaves)
        resumed = _by_step(leaves)
        for done, *_ in resumed.values():
            self._compare(done)
        # What follows the last whole line is a write that a crash cut short.
        self._recorded |= resumed
        whole = path.with_suffix(".tmp")
        whole.write_bytes(self._lines_from(0, 0))
        whole.replace(path)

    def append(self, leaf: Leaf, norms: GradientNorms | None = None) -> None:
        """Record one step, and its gradient norms if they were sampled.

        Raises:
            Refused: The file holds another leaf for this step.
        """
        new: _Recorded = (leaf,) if norms is None else (leaf, norms)
        self._compare(leaf)
        if self._recorded.get(leaf.step) != new:
            self._recorded[leaf.step] = new
            self._write_from(leaf.step)
        self.leaves += new

    def _write_from(self, step: int) -> None:
        """Put this step's lines in their place; those of later steps move behind them.

        A crash in between loses lines at the end, and leaves what stands before them.
        """
        with self._path.open("r+b") as file:
            file.seek(self._offsets.get(step, self._end))
            file.truncate()
            file.write(self._lines_from(step, file.tell()))

    def _lines_from(self, step: int, offset: int) -> bytes:
        """The lines of this step and those after it; notes where each will stand."""
        lines: list[bytes] = []
        for later in sorted(each for each in self._recorded if each >= step):
            self._offsets[later] = offset
            lines.append(_lines(self._recorded[later]))
            offset += len(lines[-1])
        self._end = offset
        return b"".join(lines)

    def _compare(self, leaf: Leaf) -> None:
        recorded, *_ = self._recorded.get(leaf.step, (leaf,))
        if recorded.model_copy(update={"world_size": leaf.world_size}) != leaf:
            raise Refused(
                f"step {leaf.step} does not repeat the leaf recorded for it",
                where=str(self._path),
                do="Data, plan or code changed under the run; start a new run",
            )


def recorded_steps(run_folder: Path) -> int:
    """The first step that a run has not recorded: 0, if it has recorded none.

    Raises:
        Malformed: A whole line of its write-ahead file is no leaf.
    """
    return max(_by_step(_complete_lines(run_folder / FILE)), default=-1) + 1


def _complete_lines(path: Path) -> tuple[AnyLeaf, ...]:
    if not path.exists():
        return ()
    data = path.read_bytes()
    return read_leaves(data[: data.rfind(b"\n") + 1])


def _by_step(leaves: Iterable[AnyLeaf]) -> dict[int, _Recorded]:
    """Each step's leaf, with its gradient norms behind it."""
    recorded: dict[int, _Recorded] = {}
    for leaf in leaves:
        if isinstance(leaf, Leaf):
            recorded[leaf.step] = (leaf,)
        else:
            recorded[leaf.step] += (leaf,)
    return recorded


def _lines(leaves: Iterable[AnyLeaf]) -> bytes:
    return b"".join(leaf.line + b"\n" for leaf in leaves)
