"""What formats repeat: sentences about a corpus and about a run, and how JSON is written.

They say what its credential states and what the ledger counted, and call the rest unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from govray.evidence.exports.verified_facts import LEVELS, UNKNOWN, CorpusFacts, VerifiedFacts


def description(corpus: CorpusFacts) -> str:
    """What the corpus is, as its issuer states it."""
    stated = corpus.credential
    kind = corpus.described.source
    source = f"Its source is {kind}. " if kind else ""
    return (
        f"Corpus {corpus.name}: {stated.records.count} records under {stated.license}, as "
        f"{stated.issuer} states in a signed credential. {source}"
        f"The Merkle root of its records is {stated.records.root}."
    )


def exclusion(corpus: CorpusFacts) -> tuple[str, ...]:
    """What holds for the layer groups that none of its own gradient entered, a sentence each."""
    told = [
        f"Level {level} ({LEVELS[level]}) for {', '.join(groups)}."
        for level, groups in corpus.groups_by_level.items()
    ]
    told += [
        f"Closed to it in steps {', '.join(f'{start} to {stop - 1}' for start, stop in ranges)}: "
        f"{group}."
        for group, ranges in sorted(corpus.closed.items())
    ]
    return tuple(told)


def personal_data(corpus: CorpusFacts) -> str:
    """What the issuer knows of personal data, and what the records were scanned for."""
    stated = corpus.credential
    told = f"Personal data, as the issuer states: {corpus.personal_data}."
    if scan := stated.pii_scan:
        told += (
            f" Records with a finding of {scan.analyzer} for {', '.join(scan.entities)} "
            f"(score {scan.score} or more) were left out."
        )
    return told


def period(corpus: CorpusFacts) -> str:
    """When it was collected, as an ISO 8601 interval."""
    stated = corpus.period
    return f"{stated.from_}/{stated.until}" if stated else UNKNOWN


# What a run began with and what happened to its data and its model: words that formats repeat.
#
# Each is a kind and a text. First comes what it started from, then its ancestors and by what it
# was selected. Then come gates, the decisions of a monitor, and removals of adapters.


def run_history(facts: VerifiedFacts) -> Iterator[tuple[str, str]]:
    """Kind and text, in the order above."""
    attestation = facts.attestation
    for name, digest in sorted((attestation.run.initial_weights or {}).items()):
        yield "startedFrom", f"existing weights {name}, {digest}"
    if (commit := attestation.run.initial_optimizer) is not None:
        yield "startedFrom", f"the optimizer's state in the commit {commit}"
    if brought := sorted({each for labels in attestation.pretrained.values() for each in labels}):
        yield "broughtByStart", ", ".join(brought)
    for earlier in attestation.run.earlier_code or ():
        yield "otherCode", f"from step {earlier.step} on, {earlier.code_digest} before"
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
            yield "memorization", f"{decision.corpus}, step {decision.step}: {decision.followed}"
    for removal in attestation.removals:
        yield "removed", f"adapter {removal.adapter}, {removal.removed}"


# A JSON document as a file for other tools: indented, UTF-8, one final newline.
#
# Members keep the order in which a format lists them, so equal facts give equal bytes.


# What URI syntax uses (RFC 3986, section 2), and the mark of what is escaped already.
_SYNTAX = ":/?#[]@!$&'()*+,;=-._~%"


def json_file(value: Any) -> bytes:
    """The bytes of ``value``, in which no number is infinite or undefined."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def iri(url: str) -> str:
    """A URL that a credential states, as an IRI (RFC 3987): other readers refuse any other."""
    return quote(url, safe=_SYNTAX)
