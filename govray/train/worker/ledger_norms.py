"""From what the engine measured to the gradient norms that the ledger holds.

A share is a ratio over all corpora. So it means something only if every corpus that updated a layer
group was measured in it. If one was not, or a number is not finite or too large, the sample leaves
out the whole group. A failed measurement never stops a run, but a gradient that the route forbids
does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from govray.errors import Refused
from govray.governance.policy.route import Route
from govray.governance.record.ledger import MAX_SQUARED_NORM, GradientNorms, Leaf, MeasuredPass


def gradient_norms(
    leaf: Leaf,
    pieces: Collection[tuple[int, str, Mapping[str, int]]],
    squares: Mapping[tuple[str, str], float],
    routes: Mapping[str, Route],
) -> GradientNorms | None:
    """The leaf that follows ``leaf``, or None if no group was measured whole.

    Args:
        leaf: Of the step that was sampled.
        pieces: One (rank, stream id, {corpus: rows}) for each stream of each pass.
        squares: (Corpus, layer group) to the sum over its pieces of squared gradient norms.
            Gradients are divided by the group's count.
        routes: Stream id to route; and the routes of later phases and fallbacks, which the leaf
            names, by digest.

    Raises:
        Refused: A norm of a corpus that is in no piece, or of a group that its route forbids.
    """
    taken = {corpus: use.route for corpus, use in leaf.corpora.items()}
    groups = {
        corpus: routes[taken.get(corpus) or stream].groups
        for _, stream, corpora in pieces
        for corpus in corpora
    }
    for corpus, group in squares:
        if group not in groups.get(corpus, ()):
            raise Refused(
                f"a gradient of corpus {corpus} in {group}, which its route forbids",
                where=f"step {leaf.step}",
                do="The engine is at fault: stop using it, and report this",
            )
    incomplete = {
        group
        for corpus, permitted in groups.items()
        for group in permitted
        # Also false for NaN.
        if not 0 <= squares.get((corpus, group), -1.0) <= MAX_SQUARED_NORM
    }
    measured = {
        corpus: {group: squares[corpus, group] for group in permitted if group not in incomplete}
        for corpus, permitted in groups.items()
    }
    squared_norms = {corpus: norms for corpus, norms in measured.items() if norms}
    if not squared_norms:
        return None
    return GradientNorms(
        branch=leaf.branch,
        step=leaf.step,
        passes=tuple(
            MeasuredPass(rank=rank, stream=stream, corpora=dict(corpora))
            for rank, stream, corpora in sorted(pieces, key=lambda piece: piece[:2])
        ),
        squared_norms=squared_norms,
    )
