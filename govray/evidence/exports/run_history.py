"""What a run began with and what happened to its data and its model: words that formats repeat.

Each is a kind and a text. First comes what it started from, then its ancestors and by what it was
selected. Then come gates, the decisions of a monitor, and removals of adapters.
"""

from __future__ import annotations

from collections.abc import Iterator

from govray.evidence.exports.verified_facts import VerifiedFacts


def run_history(facts: VerifiedFacts) -> Iterator[tuple[str, str]]:
    """Kind and text, in the order above."""
    attestation = facts.attestation
    for name, digest in sorted((attestation.run.initial_weights or {}).items()):
        yield "startedFrom", f"existing weights {name}, {digest}"
    if brought := sorted({each for labels in attestation.pretrained.values() for each in labels}):
        yield "broughtByStart", ", ".join(brought)
    for ancestor in attestation.run.ancestry or ():
        yield (
            "ancestor",
            f"run {ancestor.run} to step {ancestor.step}, ledger root {ancestor.root}",
        )
    for selection in attestation.selection_taint or ():
        ended = f", which ended it after {selection.ended} steps" if selection.ended else ""
        yield (
            "selected",
            f"under {selection.where}{ended}, by {selection.metric}, which depends on "
            f"{', '.join(selection.corpora)}",
        )
    for gate in facts.gates:
        how = f"rerouted to {gate.fallback}" if gate.fallback else "left out"
        yield "gated", f"{gate.corpus} {how} from step {gate.step}: {gate.reason}"
    if (findings := attestation.memorization) is not None:
        for decision in findings.decisions:
            yield "memorization", f"{decision.corpus}, step {decision.step}: {decision.action}"
    for removal in attestation.removals:
        yield "removed", f"adapter {removal.adapter}, {removal.removed}"
