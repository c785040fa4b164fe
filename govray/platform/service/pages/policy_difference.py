"""How the policies of compared runs differ: each against the first one's, class by class.

The comparison is that of `govray policy diff`, over the layer groups of the later run's model where
its attestation names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session

from govray.governance.policy.depth_policy import Policy
from govray.platform.service.http.problems import Problem
from govray.platform.service.identity.caller import Caller
from govray.platform.service.pages.shared_queries import signed_policy
from govray.platform.service.routes.policies import ChangeAnswer, difference, stack
from govray.platform.service.visible.visibility import find_policy
from govray.platform.store.lineage import Lineage

MOST_COMPARED = 3
"""Policies that are compared with the first; each comparison takes time."""
MOST_CHANGES = 60
BLOCKS = 4


@dataclass(frozen=True)
class PolicyDifference:
    """How one policy differs from the first, over ``groups``. ``why_not`` says why they could not
    be compared."""

    before_digest: str
    after_digest: str
    before: str
    after: str
    groups: tuple[str, ...] = ()
    changes: tuple[ChangeAnswer, ...] = ()
    more: bool = False
    why_not: str | None = None


@dataclass(frozen=True)
class ComparedPolicies:
    """The policies of the sides, in their order, and how they differ from the first. ``left_out``
    counts policies that were not compared."""

    names: tuple[str, ...]
    differences: tuple[PolicyDifference, ...]
    left_out: int


def policy_differences(
    session: Session, caller: Caller, sides: Sequence[tuple[str, Lineage | None]]
) -> ComparedPolicies:
    """Compare the policies of some runs, as far as the caller may read them. ``sides``: the digest
    of each run's policy, empty if unknown, and its lineage if it has one."""
    lineages = {digest: lineage for digest, lineage in reversed(sides) if digest}
    first, *others = list(dict.fromkeys(digest for digest, _ in sides if digest)) or [""]
    documents = {digest: readable_policy(session, caller, digest) for digest in lineages}
    compared = [
        _difference(first, documents.get(first), other, documents[other], lineages[other])
        for other in others[:MOST_COMPARED]
    ]
    return ComparedPolicies(
        tuple(str(documents.get(digest) or digest or "not known") for digest, _ in sides),
        tuple(compared),
        max(len(others) - MOST_COMPARED, 0),
    )


def readable_policy(session: Session, caller: Caller, digest: str) -> Policy | None:
    """The signed policy, if the index has it and the caller may read it."""
    try:
        find_policy(session, caller, digest)
    except Problem:
        return None
    return signed_policy(session, digest)


def _difference(
    first: str, before: Policy | None, other: str, after: Policy | None, lineage: Lineage | None
) -> PolicyDifference:
    named = (first, other, str(before or first), str(after or other))
    if before is None or after is None:
        missing = first if before is None else other
        why = f"The index does not have the signed policy {missing}: no model under it is indexed."
        return PolicyDifference(*named, why_not=why)
    groups = (
        tuple(each.group for each in lineage.groups if each.kind == "base")
        if lineage is not None
        else stack(after, BLOCKS)
    )
    try:
        found = difference(before, after, groups)
    except Problem as problem:
        return PolicyDifference(*named, groups, why_not=f"{problem.detail}.")
    more = found.more or len(found.changes) > MOST_CHANGES
    return PolicyDifference(*named, groups, tuple(found.changes[:MOST_CHANGES]), more)
