"""Sentences about one corpus, in the words that every format repeats.

They say what its credential states and what the ledger counted, and call the rest unknown.
"""

from __future__ import annotations

from govray.evidence.exports.verified_facts import LEVELS, UNKNOWN, CorpusFacts


def description(corpus: CorpusFacts) -> str:
    """What the corpus is, as its issuer states it."""
    stated = corpus.credential
    source = f"Its source is {corpus.source}. " if corpus.source else ""
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
