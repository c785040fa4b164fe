"""What a run read of each corpus between its kept commits, and how strongly it trained on that.

For a layer group l and the steps S between two commits, a corpus's mean factor is

    c_l  =  Σ_{s ∈ S} n_s · w_l · η_s / N_ls   /   Σ_{s ∈ S} n_s

Here n_s is its loss targets in step s, w_l its route's weight then, and η_s the learning rate. N_ls
counts the targets of all corpora whose route reaches l. All of it stands in the ledger and the
routes.

Invariants:

* The last branch counts: a step that a rollback undid trained nothing that is left.
* A corpus has factors for the layer groups that its rows' route permitted in that step, and for no
  others. After a gate that is the fallback's route, in a later phase that phase's.
* Rows that were read with different adapters are different readings.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from govray.governance.attestation.coverage import group_weights
from govray.governance.policy.route import Route
from govray.governance.record.ledger import Leaf


@dataclass(frozen=True, kw_only=True)
class CorpusReading:
    """A corpus's rows between two commits.

    Attributes:
        corpus: Whose.
        adapter: The adapter that the rows were read with, if any.
        steps: Those that read it so.
        targets: Loss targets, a row counting as often as it was read.
        factors: Layer group → c_l.
    """

    corpus: str
    adapter: str | None
    steps: frozenset[int]
    targets: int
    factors: Mapping[str, float]


def corpus_readings(
    leaves: Mapping[int, Leaf],
    taken: Callable[[str, str | None], Route],
    rates: Sequence[float],
    commits: Sequence[int],
) -> list[list[CorpusReading]]:
    """The readings before each commit.

    Args:
        leaves: Step → its leaf in the last branch.
        taken: ``(corpus, digest or None) -> Route``: the route that a leaf's rows took.
        rates: Learning rate of each step.
        commits: The next step of each kept commit, ascending; the last one holds all steps.

    Returns:
        Of each commit, the readings of the steps since the commit before it, sorted by corpus and
        adapter.
    """
    found: list[dict[tuple[str, str | None], _Sums]] = [{} for _ in commits]
    for step, leaf in sorted(leaves.items()):
        place = bisect_right(commits, step)
        if place == len(commits):
            continue
        routes = {corpus: taken(corpus, use.route) for corpus, use in leaf.corpora.items()}
        weights = {corpus: group_weights(route) for corpus, route in routes.items()}
        counts: dict[str, int] = {}
        for corpus, use in leaf.corpora.items():
            for group in weights[corpus]:
                counts[group] = counts.get(group, 0) + use.targets
        for corpus, use in leaf.corpora.items():
            if not use.targets:
                continue
            sums = found[place].setdefault((corpus, routes[corpus].adapter), _Sums(set(), 0, {}))
            sums.steps.add(step)
            sums.targets += use.targets
            for group, weight in weights[corpus].items():
                part = use.targets * weight * rates[step] / counts[group]
                sums.weighted[group] = sums.weighted.get(group, 0.0) + part
    return [
        [
            CorpusReading(
                corpus=corpus,
                adapter=adapter,
                steps=frozenset(sums.steps),
                targets=sums.targets,
                factors={group: part / sums.targets for group, part in sums.weighted.items()},
            )
            for (corpus, adapter), sums in sorted(
                each.items(), key=lambda item: (item[0][0], item[0][1] or "")
            )
        ]
        for each in found
    ]


@dataclass
class _Sums:
    steps: set[int]
    targets: int
    weighted: dict[str, float]
