"""Runs that a run went on from: whose state it took over, after which step, and their ledger.

A run may take over another's state, which population-based training calls exploit. Its ledger
begins with the other's. So its counts, coverage and taint are those of all steps that made its
weights. The ancestry says which of its first lines came from whom. It names each ancestor's tree
head at that point, so whoever has that run's ledger can compare.

Invariants:

* Ancestors are in the order of their steps, and no run is its own ancestor.
* The lines that an ancestor gave end with the last step before the hand-over, and their root is the
  one stated. A ledger without them does not begin at step 0, and no reader accepts it.

That the weights were those of the ancestor is the signer's word, as it is for every step.
"""

from __future__ import annotations

from collections.abc import Sequence

from govray.errors import Refused
from govray.governance.formats import merkle
from govray.governance.formats.bounds import Positive
from govray.governance.formats.document import Count, Digest, Document, Name
from govray.governance.record.ledger import AnyLeaf, Leaf


class Ancestor(Document):
    """A run that the steps before ``step`` come from, those of its own ancestors included.

    ``size`` and ``root`` are the tree head of the ledger's lines of these steps.
    """

    run: Name
    step: Positive
    size: Count
    root: Digest


def inherit(
    run: str, ancestry: Sequence[Ancestor], step: int, leaves: Sequence[AnyLeaf]
) -> tuple[Ancestor, ...]:
    """The ancestry of a run that goes on from ``run`` before step ``step``.
    ``step``: the first step that the state does not hold, at least 1."""
    if ancestry and ancestry[-1].step == step:
        return tuple(ancestry)  # it had not taken a step of its own
    return (*ancestry, Ancestor(run=run, step=step, size=len(leaves), root=_root(leaves)))


def check_ancestry(run: str, ancestry: Sequence[Ancestor], leaves: Sequence[AnyLeaf]) -> None:
    """Check an ancestry against the ledger that it belongs to."""
    runs = [run]
    before = 0
    for each in ancestry:
        where = f"ancestor {each.run}"
        if each.run in runs:
            raise Refused("a run is its own ancestor", where=where)
        runs.append(each.run)
        if each.step <= before:
            raise Refused("ancestors are out of order", where=where)
        before = each.step
        given = leaves[: each.size]
        steps = [leaf.step for leaf in given if isinstance(leaf, Leaf)]
        following = leaves[each.size] if each.size < len(leaves) else None
        if len(given) < each.size or not steps or steps[-1] != each.step - 1:
            raise Refused(
                f"the first {each.size} lines of the ledger do not end with step {each.step - 1}",
                where=where,
            )
        if following is not None and not isinstance(following, Leaf):
            raise Refused("the gradient norms of its last step are cut off", where=where)
        if _root(given) != each.root:
            raise Refused("the ledger's first lines have another root", where=where)


def _root(leaves: Sequence[AnyLeaf]) -> str:
    return "sha256:" + merkle.root([leaf.line for leaf in leaves]).hex()
