"""Ways to train under a depth policy, each behind one interface: ``step(batch)``."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.methods.ddp import CompiledDDP, PlainDDP
from benchmarks.methods.detach_activations import DetachActivations
from benchmarks.methods.detach_and_where import DetachAndWhere, DetachAndWhereSparing
from benchmarks.methods.governed import (
    Governed,
    GovernedCompiled,
    GovernedGraphs,
    GovernedSampled,
    GovernedSliced,
    GovernedSlicedGraphs,
)
from benchmarks.methods.method import Method
from benchmarks.methods.per_sample import PerSample
from benchmarks.methods.zeroing import Zeroing

METHODS: Mapping[str, type[Method]] = {
    "ddp": PlainDDP,
    "governed": Governed,
    "governed_sampled": GovernedSampled,
    "governed_sliced": GovernedSliced,
    "governed_graphs": GovernedGraphs,
    "governed_sliced_graphs": GovernedSlicedGraphs,
    "ddp_compiled": CompiledDDP,
    "governed_compiled": GovernedCompiled,
    "detach_and_where": DetachAndWhere,
    "detach_and_where_sparing": DetachAndWhereSparing,
    "detach_activations": DetachActivations,
    "per_sample": PerSample,
    "zeroing": Zeroing,
}
"""By name, in the order in which tables show them."""
