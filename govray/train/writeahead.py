"""The write-ahead file of ledger leaves: one canonical line per optimizer step.

Rank 0 appends a step's leaf once the step is done. A step that is run again
after a restart must produce the leaf that is already there; if it does not,
either the data, the plan or the code changed under the run, and it stops.
The world size may differ after a resize, so it is left out of that comparison.
This file is never signed: the driver signs the leaves of a committed checkpoint.
Lines lost with a machine cost nothing: their steps are run, and recorded, again.
"""

from __future__ import annotations

from pathlib import Path

from govray.errors import Refused
from govray.governance.ledger import Leaf, read_leaves


class WriteAhead:
    """Appends leaves to one file; ``leaves`` are those of steps ``0 … next_step-1``.

    Args:
        path: The file, created if absent.
        leaves: Leaves of the checkpoint that the run resumes from.

    Raises:
        Refused: The file does not hold the checkpoint's leaves.
    """

    def __init__(self, path: Path, leaves: tuple[Leaf, ...]) -> None:
        self._path = path
        self._recorded = _complete_lines(path)
        self.leaves = list(leaves)
        for done in leaves:
            self._compare(done)
        # What follows the last whole line is a write that a crash cut short.
        whole = path.with_suffix(".tmp")
        whole.write_bytes(b"".join(leaf.line + b"\n" for leaf in self._recorded.values()))
        whole.replace(path)

    def append(self, leaf: Leaf) -> None:
        """Record one step.

        Raises:
            Refused: The file holds another leaf for this step.
        """
        if leaf.step in self._recorded:
            self._compare(leaf)
        else:
            with self._path.open("ab") as file:
                file.write(leaf.line + b"\n")
            self._recorded[leaf.step] = leaf
        self.leaves.append(leaf)

    def _compare(self, leaf: Leaf) -> None:
        recorded = self._recorded.get(leaf.step)
        if recorded is None or recorded.model_copy(update={"world_size": leaf.world_size}) != leaf:
            raise Refused(
                f"step {leaf.step} does not repeat the leaf recorded for it",
                where=str(self._path),
                do="Data, plan or code changed under the run; start a new run",
            )


def _complete_lines(path: Path) -> dict[int, Leaf]:
    if not path.exists():
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    return {leaf.step: leaf for leaf in read_leaves(whole)}
