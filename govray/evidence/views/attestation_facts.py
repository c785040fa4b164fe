"""An attestation split into facts, each of which can be shown or withheld by itself.

The granularity:

* A field that is a scalar or a list is one fact, and a field that is an object is one per member.
* ``corpora`` is one per corpus and member, with the members of its class one by one.
* ``coverage``, ``taint``, ``levels`` and ``phaseExclusions`` are one per corpus and layer group.
* ``taint`` has a fact for each such pair, also for one that nothing reached. What is no corpus,
  such as what a pretrained start brings, is one list per layer group, ``taint.start``.
* ``groups``, ``adapters`` and ``pretrained`` are one per layer group.

A field that is empty is one fact, which says so.

Two facts are in no field. ``attestation`` is the digest of its statement. ``counts`` says how many
corpora, layer groups and adapters there are, so that a reader can see whether all are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from govray.governance.attestation.model_attestation import Attestation
from govray.governance.policy.route import ADAPTER

ATTESTATION = "attestation"
COUNTS = "counts"
DISCLAIMER = "disclaimer"
ASSURANCE = "assuranceLevel"


@dataclass(frozen=True)
class Fact:
    """One part of an attestation. No two of one attestation have equal field, corpus and group.
    ``field``: as the attestation's JSON spells it, with dots."""

    field: str
    value: Any
    corpus: str | None = None
    group: str | None = None


def facts_of(attestation: Attestation, digest: str) -> tuple[Fact, ...]:
    """All facts of an attestation whose statement has this digest, in the order of its fields."""
    stated = attestation.to_json()
    found = [
        Fact(ATTESTATION, digest),
        Fact(
            COUNTS,
            {name: len(stated[name]) for name in ("adapters", "corpora")}
            | {"groups": len(stated["taint"])},
        ),
    ]
    for field, value in stated.items():
        if field == "taint" and value:
            found += _taint([each.corpus for each in attestation.corpora], value)
        elif field in _SPLIT and value:
            found += _SPLIT[field](value)
        else:
            found += _members(field, value) if value else [Fact(field, value)]
    return tuple(found)


def names_of(attestation: Attestation) -> frozenset[str]:
    """The names that a view can withhold: of corpora, those in quarantine too, and of adapters."""
    return frozenset(
        {each.corpus for each in attestation.corpora}
        | {each.corpus for each in attestation.quarantine}
        | {each.name for each in attestation.adapters}
        | set(attestation.plan.excluded)
    )


def _members(field: str, value: Any) -> Iterator[Fact]:
    if isinstance(value, dict):
        for name, member in value.items():
            yield Fact(f"{field}.{name}", member)
    else:
        yield Fact(field, value)


def _corpora(value: Any) -> Iterator[Fact]:
    for entry in value:
        for name, member in entry.items():
            if name == "credentialClass":
                for attribute, stated in member.items():
                    if attribute != "corpus":
                        yield Fact(f"corpora.{name}.{attribute}", stated, entry["corpus"])
            elif name != "corpus":
                yield Fact(f"corpora.{name}", member, entry["corpus"])


def _coverage(value: Any) -> Iterator[Fact]:
    for entry in value:
        counted = {k: v for k, v in entry.items() if k not in ("corpus", "group")}
        yield Fact("coverage", counted, entry["corpus"], entry["group"])


def _taint(corpora: Sequence[str], value: Any) -> Iterator[Fact]:
    for entry in value:
        group, direct, transitive = entry["group"], entry["direct"], entry["transitive"]
        for corpus in corpora:
            reached = {"direct": corpus in direct, "transitive": corpus in transitive}
            yield Fact("taint", reached, corpus, group)
        if start := [each for each in transitive if each not in corpora]:
            yield Fact("taint.start", start, group=group)


def _by_pair(field: str, value: Any) -> Iterator[Fact]:
    for corpus, groups in value.items():
        for group, stated in groups.items():
            yield Fact(field, stated, corpus, group)


def _groups(value: Any) -> Iterator[Fact]:
    for entry in value:
        yield Fact("groups", {"parameters": entry["parameters"]}, group=entry["group"])


def _adapters(value: Any) -> Iterator[Fact]:
    for entry in value:
        stated = {k: v for k, v in entry.items() if k != "name"}
        yield Fact("adapters", stated, group=ADAPTER + entry["name"])


def _pretrained(value: Any) -> Iterator[Fact]:
    for group, labels in value.items():
        yield Fact("pretrained", labels, group=group)


_SPLIT: Mapping[str, Callable[[Any], Iterable[Fact]]] = {
    "corpora": _corpora,
    "coverage": _coverage,
    "levels": partial(_by_pair, "levels"),
    "phaseExclusions": partial(_by_pair, "phaseExclusions"),
    "groups": _groups,
    "adapters": _adapters,
    "pretrained": _pretrained,
    "files": lambda value: [Fact("files", value)],
}
