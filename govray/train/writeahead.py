"""The write-ahead file of ledger leaves: canonical lines, in the order of the steps.

Rank 0 appends a step's leaf once the step is done, and behind it the gradient
norms if they were sampled. A step that is run again after a restart must
produce the leaf that is already there; if it does not, either the data, the
plan or the code changed under the run, and it stops. The world size may differ
after a resize, so it is left out of that comparison, and so are gradient norms:
they are measured, and not every device repeats a float. What goes on into the
ledger is what the step that went on measured.
This file is never signed: the driver signs the leaves of a committed checkpoint.
Lines lost with a machine cost nothing: their steps are run, and recorded, again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from govray.errors import Refused
from govray.governance.ledger import AnyLeaf, GradientNorms, Leaf, read_leaves


class WriteAhead:
    """Appends leaves to one file; ``leaves`` are those of steps ``0 … next_step-1``, of both kinds.

    Args:
        path: The file, created if absent.
        leaves: Leaves of the checkpoint that the run resumes from.

    Raises:
        Refused: The file does not hold the checkpoint's leaves.
    """

    def __init__(self, path: Path, leaves: tuple[AnyLeaf, ...]) -> None:
        self._path = path
        recorded = _complete_lines(path)
        self._recorded = {leaf.step: leaf for leaf in _steps(recorded)}
        self.leaves = list(leaves)
        for done in _steps(leaves):
            self._compare(done)
        # What follows the last whole line is a write that a crash cut short.
        whole = path.with_suffix(".tmp")
        whole.write_bytes(_lines(recorded))
        whole.replace(path)

    def append(self, leaf: Leaf, norms: GradientNorms | None = None) -> None:
        """Record one step, and its gradient norms if they were sampled.

        Raises:
            Refused: The file holds another leaf for this step.
        """
        new: list[AnyLeaf] = [leaf] if norms is None else [leaf, norms]
        if leaf.step in self._recorded:
            self._compare(leaf)
        else:
            with self._path.open("ab") as file:
                file.write(_lines(new))
            self._recorded[leaf.step] = leaf
        self.leaves += new

    def _compare(self, leaf: Leaf) -> None:
        recorded = self._recorded.get(leaf.step)
        if recorded is None or recorded.model_copy(update={"world_size": leaf.world_size}) != leaf:
            raise Refused(
                f"step {leaf.step} does not repeat the leaf recorded for it",
                where=str(self._path),
                do="Data, plan or code changed under the run; start a new run",
            )


def _complete_lines(path: Path) -> tuple[AnyLeaf, ...]:
    if not path.exists():
        return ()
    data = path.read_bytes()
    return read_leaves(data[: data.rfind(b"\n") + 1])


def _steps(leaves: Iterable[AnyLeaf]) -> Iterator[Leaf]:
    return (leaf for leaf in leaves if isinstance(leaf, Leaf))


def _lines(leaves: Iterable[AnyLeaf]) -> bytes:
    return b"".join(leaf.line + b"\n" for leaf in leaves)
