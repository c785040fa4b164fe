"""Ways to train under a depth policy, each behind one interface: ``step(batch)``."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.methods.by_hand import DetachAndWhere
from benchmarks.methods.governed import (
    Governed,
    GovernedGraphs,
    GovernedSampled,
    GovernedSliced,
    GovernedSlicedGraphs,
)
from benchmarks.methods.method import Method, PlainDDP

METHODS: Mapping[str, type[Method]] = {
    "ddp": PlainDDP,
    "governed": Governed,
    "governed_sampled": GovernedSampled,
    "governed_sliced": GovernedSliced,
    "governed_graphs": GovernedGraphs,
    "governed_sliced_graphs": GovernedSlicedGraphs,
    "detach_and_where": DetachAndWhere,
}
"""By name, in the order in which tables show them."""
