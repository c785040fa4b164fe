"""The lineage of one model: what its verified attestation says, corpus by corpus, group by group.

A view for programs and pages. Every number is in the attestation; here it is arranged for readers.
There is a row for each corpus, with a cell for each layer group. Groups are in model order, with
the adapters last. `lineage` makes it once, when an attestation is indexed; `encode` gives the
canonical bytes that are stored and sent as they are.

What the words mean

* ``direct``: the corpus's route lets its own gradient into the group, and the plan reads it;
  ``tokens`` is what the ledger counted of that.
* ``transitive``: the corpus can have reached the group by any recorded path, the direct one
  included. Every corpus reads the trunk, so this is usually alike over all of it.
* ``level``: how well an exclusion is supported (`govray.governance.attestation.coverage`); absent
  where the corpus's route reaches the group, since there nothing is excluded.

Invariants

* What `of_corpora` leaves says nothing about other corpora: neither their names nor their number.
  It has no searches, ancestors or adapters that might bear their names. A gradient-norm share is a
  part of all measured gradients. So a share below 1 shows that others trained the group, but not
  which.
* A view is a `Lineage` like the whole one, and `scope` says which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from govray.errors import Malformed, UsageError
from govray.governance.attestation.execution import Execution
from govray.governance.attestation.model_attestation import (
    AdmittedCorpus,
    AssuranceLevel,
    Attestation,
    ClosedSteps,
    LedgerHead,
    Level,
    Reference,
    Removal,
)
from govray.governance.attestation.selection_taint import Selection
from govray.governance.formats import canonical_json
from govray.governance.formats.bounds import Share
from govray.governance.formats.document import Count, Digest, Document, Name, Timestamp
from govray.governance.policy.route import ADAPTER
from govray.governance.record.ancestry import Ancestor
from govray.governance.record.prepare_manifest import Quarantined
from govray.governance.trust.authority import Sensitivity
from govray.governance.trust.license import LicenseCategory, Use

UNKNOWN = "unknown"
"""The label of what weights brought that no attestation speaks for."""


class LineageCell(Document):
    """One corpus in one layer group. See the module for the words.

    Attributes:
        tokens: Loss targets whose gradient updated the group, as the ledger counted them.
        weight: The route's, in (0, 1]; absent where the route does not reach the group. Of a
            route with phases, the largest.
        gradient_norm_share: The corpus's part of the gradients measured of the group, in [0, 1];
            absent where none was measured.
        closed: Half-open ranges of steps whose phase does not reach the group, where others do.
    """

    group: str
    tokens: Count
    weight: Share | None = None
    closed: ClosedSteps | None = None
    gradient_norm_share: Share | None = None
    direct: bool
    transitive: bool
    level: Level | None = None


class CorpusLineage(Document):
    """What one run recorded of one corpus.

    Attributes:
        credential: Digest of the credential under which it was admitted.
        license, license_category, jurisdiction, sensitivity, use: The credential class, which is
            what the policy saw.
        rules: The policy's rules that matched it.
        profile: What they gave it.
        excluded: The plan names it, but reads none of it.
        records: Distinct records that were read.
        tokens: Loss targets that were read.
        steps: In how many steps. These three are of the layer group that most of it updated; only
            gates and phases let groups differ.
        replayed_by: Who replayed the run without it and got the same bytes: ``NAME itself`` for
            the operator that signed, a witness's name for a second party.
        cells: One for each of the document's groups, in their order.
    """

    corpus: Name
    credential: Digest
    license: str
    license_category: LicenseCategory
    jurisdiction: str
    sensitivity: Sensitivity
    use: Use
    rules: tuple[str, ...]
    profile: str
    excluded: bool
    records: Count
    tokens: Count
    steps: Count
    replayed_by: tuple[str, ...]
    cells: tuple[LineageCell, ...]


class GroupLineage(Document):
    """A layer group and what it began with.

    Attributes:
        kind: ``base``, or ``adapter``: removable, with its own file.
        parameters: FQNs of a base group's parameters, tensor names of an adapter's.
        pretrained: What the weights that the run started from brought: names of corpora, or
            ``unknown``. Empty where training began from nothing.
        transitive: What reached the group by any path from outside this run: the ``unknown`` of a
            start, or corpora of an attested one.
        removed: When the adapter's files were deleted; absent if they were not.
    """

    group: str
    kind: Literal["base", "adapter"]
    parameters: tuple[str, ...]
    pretrained: tuple[str, ...]
    transitive: tuple[str, ...]
    removed: Timestamp | None = None


class LineageRun(Document):
    """The run. What is optional is as in the attestation, but for ``deleted``: when the run's
    checkpoints were deleted. Its model and evidence stay."""

    id: Name
    name: str
    started: Timestamp
    finished: Timestamp
    initial_weights: dict[str, Digest] | None = None
    ancestry: tuple[Ancestor, ...] | None = None
    deleted: Timestamp | None = None


class Lineage(Document):
    """Which data trained which layers of one model, as one attestation states it.

    Attributes:
        scope: ``whole``; ``corpora``, only the rows that the caller may see; ``group``, one layer
            group of all rows; ``corporaGroup``, both.
        attestation: Digest of the attestation's statement, from which all else follows.
        execution: As in the attestation; absent where only some corpora are shown.
        selection_taint: Searches and early stopping, by numbers which depend on corpora.
        removals: Adapters whose files were deleted, and when.
        quarantine: What was refused, and why.
    """

    schema_version: Literal["v1"] = "v1"
    scope: Literal["whole", "corpora", "group", "corporaGroup"]
    attestation: Digest
    run: LineageRun
    execution: Execution | None = None
    policy: Reference
    ledger: LedgerHead
    assurance_level: AssuranceLevel
    groups: tuple[GroupLineage, ...]
    corpora: tuple[CorpusLineage, ...]
    selection_taint: tuple[Selection, ...]
    removals: tuple[Removal, ...]
    quarantine: tuple[Quarantined, ...]


def lineage(
    attestation: Attestation, digest: str, replayed_by: Mapping[str, Sequence[object]]
) -> Lineage:
    """The whole lineage of a verified attestation.

    Args:
        attestation: As verified: its coverage, taint and levels are taken as they are.
        replayed_by: Corpus → who replayed the run without it, as verified. The attestation's own
            text for it is anybody's name.
    """
    run = attestation.run
    groups = _groups(attestation)
    return Lineage(
        scope="whole",
        attestation=digest,
        run=LineageRun(
            id=run.id,
            name=run.name,
            started=run.started,
            finished=run.finished,
            initial_weights=run.initial_weights,
            ancestry=run.ancestry,
        ),
        execution=attestation.execution,
        policy=attestation.policy,
        ledger=attestation.ledger,
        assurance_level=attestation.assurance_level,
        groups=groups,
        corpora=_corpora(attestation, [each.group for each in groups], replayed_by),
        selection_taint=attestation.selection_taint or (),
        removals=attestation.removals,
        quarantine=attestation.quarantine,
    )


def _groups(attestation: Attestation) -> tuple[GroupLineage, ...]:
    taint = {each.group: each.transitive for each in attestation.taint}
    here = {each.corpus for each in attestation.corpora}
    removed = {ADAPTER + each.adapter: each.removed for each in attestation.removals}
    named = [(each.group, each.parameters) for each in attestation.groups]
    named += [(ADAPTER + each.name, each.tensors) for each in attestation.adapters]
    return tuple(
        GroupLineage(
            group=group,
            kind="adapter" if group.startswith(ADAPTER) else "base",
            parameters=parameters,
            pretrained=attestation.pretrained.get(group, ()),
            transitive=tuple(label for label in taint.get(group, ()) if label not in here),
            removed=removed.get(group),
        )
        for group, parameters in named
    )


def _corpora(
    attestation: Attestation, groups: list[str], replayed_by: Mapping[str, Sequence[object]]
) -> tuple[CorpusLineage, ...]:
    totals = {each.corpus: each for each in sorted(attestation.coverage, key=lambda c: c.tokens)}
    cells = _cells(attestation)
    rows = []
    for each in attestation.corpora:
        total, seen = totals.get(each.corpus), each.credential_class
        rows.append(
            CorpusLineage(
                corpus=each.corpus,
                credential=each.credential,
                license=seen.license,
                license_category=seen.license_category,
                jurisdiction=seen.jurisdiction,
                sensitivity=seen.sensitivity,
                use=seen.use,
                rules=each.rules,
                profile=each.profile,
                excluded=each.corpus in attestation.plan.excluded,
                records=total.records if total else 0,
                tokens=total.tokens if total else 0,
                steps=total.steps if total else 0,
                replayed_by=tuple(str(who) for who in replayed_by.get(each.corpus, ())),
                cells=tuple(cells(each, group) for group in groups),
            )
        )
    return tuple(rows)


def _cells(attestation: Attestation) -> Callable[[AdmittedCorpus, str], LineageCell]:
    """What an attestation says of one corpus in one layer group."""
    counted = {(each.corpus, each.group): each for each in attestation.coverage}
    direct = {(corpus, each.group) for each in attestation.taint for corpus in each.direct}
    reached = {(corpus, each.group) for each in attestation.taint for corpus in each.transitive}
    weights = {each.corpus: _weights(each) for each in attestation.corpora}
    closed = attestation.phase_exclusions or {}

    def cell(admitted: AdmittedCorpus, group: str) -> LineageCell:
        corpus = admitted.corpus
        place = corpus, group
        found = counted.get(place)
        return LineageCell(
            group=group,
            tokens=found.tokens if found else 0,
            weight=weights[corpus].get(group),
            closed=closed.get(corpus, {}).get(group),
            gradient_norm_share=found.gradient_norm_share if found else None,
            direct=place in direct,
            transitive=place in reached,
            level=attestation.levels.get(corpus, {}).get(group),
        )

    return cell


def _weights(corpus: AdmittedCorpus) -> dict[str, float]:
    """Layer group → the largest weight of any phase."""
    route = corpus.route
    found = {} if route.adapter is None else {ADAPTER + route.adapter.name: 1.0}
    for weights in (route.weights, *(phase.weights for phase in route.phases or ())):
        for group, weight in weights.items():
            found[group] = max(weight, found.get(group, 0.0))
    return found


def of_corpora(whole: Lineage, names: Collection[str]) -> Lineage:
    """Only what is about the corpora ``names``: what their supplier may see.

    Their rows stay, in the base groups and in adapters that they train themselves, and of lists
    of corpora their own names. A name that the lineage does not have leaves nothing, not an error.
    """
    rows = [row for row in whole.corpora if row.corpus in names]
    adapters = {c.group for row in rows for c in row.cells if c.weight is not None}
    groups = [each for each in whole.groups if each.kind == "base" or each.group in adapters]
    shown = {each.group for each in groups}
    labels = {*names, UNKNOWN}
    return whole.model_copy(
        update={
            "scope": "corpora" if whole.scope in ("whole", "corpora") else "corporaGroup",
            "run": whole.run.model_copy(update={"initial_weights": None, "ancestry": None}),
            "execution": None,
            "groups": tuple(_own(each, labels) for each in groups),
            "corpora": tuple(
                row.model_copy(update={"cells": tuple(c for c in row.cells if c.group in shown)})
                for row in rows
            ),
            "selection_taint": tuple(
                each.model_copy(update={"corpora": own, "validation": None})
                for each in whole.selection_taint
                if (own := tuple(c for c in each.corpora if c in names))
            ),
            "removals": tuple(r for r in whole.removals if ADAPTER + r.adapter in shown),
            "quarantine": tuple(q for q in whole.quarantine if q.corpus in names),
        }
    )


def _own(group: GroupLineage, labels: Collection[str]) -> GroupLineage:
    return group.model_copy(
        update={
            "pretrained": tuple(label for label in group.pretrained if label in labels),
            "transitive": tuple(label for label in group.transitive if label in labels),
        }
    )


def of_group(document: Lineage, group: str) -> Lineage:
    """One layer group of all the document's rows."""
    if group not in {each.group for each in document.groups}:
        raise UsageError(
            "the model has no such layer group",
            where=group[:200],
            do=f"It has {', '.join(each.group for each in document.groups[:40])}",
        )
    return document.model_copy(
        update={
            "scope": "group" if document.scope in ("whole", "group") else "corporaGroup",
            "groups": tuple(each for each in document.groups if each.group == group),
            "corpora": tuple(
                row.model_copy(update={"cells": tuple(c for c in row.cells if c.group == group)})
                for row in document.corpora
            ),
            "removals": tuple(r for r in document.removals if ADAPTER + r.adapter == group),
        }
    )


def encode(document: Lineage) -> bytes:
    """The document's canonical JSON."""
    return canonical_json.encode(document.to_json())


def decode(data: bytes) -> Lineage:
    try:
        return Lineage.model_validate_json(data, by_alias=True, by_name=False)
    except ValueError as error:
        raise Malformed(f"not a lineage: {error}", where="lineage") from None
