"""``/v1/policies`` and ``/v1/trust-roots``: what was signed, its exact bytes, and what it means.

For staff, and for everyone where a public attestation is under them. A policy's rules and a trust
root's authorities may name suppliers and corpora, so a supplier reads only public ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BeforeValidator, Field
from sqlalchemy import select

from govray.errors import Malformed, Refused
from govray.governance.policy import lint
from govray.governance.policy.credential import CredentialClass
from govray.governance.policy.depth_policy import Match
from govray.governance.policy.depth_policy import Policy as PolicyDocument
from govray.governance.trust import license as spdx
from govray.governance.trust.authority import Sensitivity
from govray.governance.trust.license import LicenseCategory, Use
from govray.platform.service.http.answer import Answer
from govray.platform.service.http.problems import Problem, unprocessable
from govray.platform.service.http.statuses import refusing
from govray.platform.service.identity.access import Caller
from govray.platform.service.identity.pagination import Listing, PageDep, columns_of, filtered
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.routes.attestations import (
    DSSE,
    ENVELOPE_RESPONSES,
    IfNoneMatch,
    immutable,
)
from govray.platform.service.visible import visible_models
from govray.platform.service.visible.lookup import DigestPath, full_digest
from govray.platform.service.visible.visible_models import (
    find_policy,
    find_trust_root,
    find_whole_attestation,
    policies,
    policy_document,
)
from govray.platform.store.lineage import decode
from govray.platform.store.tables import PolicyRow, TrustRootRow

router = APIRouter(tags=["policies"])

MAX_CHANGES = 500
MAX_COMBINATIONS = 20_000
"""Of attribute values that two policies name: what a comparison takes time for."""
MAX_BLOCKS = 1_000

Blocks = Annotated[
    int,
    Query(ge=1, le=MAX_BLOCKS, description="For a model of this many blocks."),
]
Digest = Annotated[
    str,
    Query(pattern="^(sha256:)?[0-9a-f]{64}$", examples=["sha256:" + "b6" * 32]),
]


class PolicyItem(Answer):
    """A signed depth policy."""

    digest: str
    name: str = Field(examples=["licences"])
    version: int
    signer: str


class TrustRootItem(Answer):
    """A trust root that something here was verified against. Get yours from its owner."""

    digest: str
    name: str
    version: int


class ClassAsked(Answer):
    """The class of data to explain a policy for: what its credential would say."""

    license: str = Field(max_length=1000, examples=["MPL-2.0"])
    corpus: str = Field(default="any-corpus", max_length=128)
    license_category: LicenseCategory | None = Field(
        default=None, description="Needed where it does not follow from the licence."
    )
    jurisdiction: str = Field(default="ZZ", max_length=2)
    sensitivity: Sensitivity = "public"
    use: Use | None = None
    blocks: int = Field(default=4, ge=1, le=MAX_BLOCKS)
    attestation: str | None = Field(
        default=None,
        pattern="^(sha256:)?[0-9a-f]{64}$",
        description="Or for the layer groups of this attested model.",
    )


class GroupAnswer(Answer):
    """Why a layer group has its weight: the rules that give it the smallest."""

    group: str
    weight: float
    rules: list[str]


class PhaseAnswer(Answer):
    """Why layer groups have other weights from a step on."""

    from_step: int
    groups: list[GroupAnswer]


class PhaseWeights(Answer):
    """The weights of a class from a step on."""

    from_step: int
    weights: dict[str, float]


class ExplanationAnswer(Answer):
    """Which rules decide what, for one class in one model."""

    policy: str
    profile: str
    rules: list[str]
    quarantined_by: str | None
    adapter: str | None
    rank: int | None
    groups: list[GroupAnswer] = Field(description="Of a profile with phases, the first.")
    phases: list[PhaseAnswer] = Field(description="The later ones.")
    memorization: str | None


class OutcomeAnswer(Answer):
    """What a policy means for one class."""

    status: Literal["trains", "quarantined", "refused"]
    label: str
    weights: dict[str, float] = Field(description="Of a profile with phases, the first.")
    phases: list[PhaseWeights] = Field(description="The later ones.")
    rank: int | None
    memorization: str | None


def _stated(credential: Any) -> Any:
    """A class of data as its attributes in words."""
    if not isinstance(credential, CredentialClass):
        return credential
    stated = credential.to_json().items()
    return {name: ", ".join(each) if isinstance(each, list) else each for name, each in stated}


class ChangeAnswer(Answer):
    """A class that two policies treat differently."""

    credential_class: Annotated[dict[str, str], BeforeValidator(_stated)]
    widens: bool
    gains: list[str]
    losses: list[str]
    before: OutcomeAnswer
    after: OutcomeAnswer


class DiffAnswer(Answer):
    """The classes that two policies treat differently, one for each combination of values."""

    old: str
    new: str
    changes: list[ChangeAnswer]
    more: bool = Field(description=f"Whether there are more than the {MAX_CHANGES} listed.")


@router.get("/policies")
def listing(
    visit: VisitDep, page: PageDep, name: Annotated[str | None, Query(max_length=128)] = None
) -> Listing[PolicyItem]:
    """The policies that you may read, by name and version."""
    statement = select(*columns_of(PolicyRow, PolicyItem)).where(policies(visit.caller))
    statement = filtered(statement, (PolicyRow.name, name))
    order = (PolicyRow.name, PolicyRow.version, PolicyRow.digest)
    return page.listing(visit.session, statement, order, PolicyItem.model_validate)


@router.get("/policies:diff", responses=refusing(404))
def diff(
    visit: VisitDep,
    old: Annotated[Digest, Query(alias="from")],
    new: Annotated[Digest, Query(alias="to")],
    blocks: Blocks = 4,
) -> DiffAnswer:
    """The classes of data that two policies treat differently."""
    before, after = _policy(visit, old), _policy(visit, new)
    return difference(before, after, stack(after, blocks))


def difference(before: PolicyDocument, after: PolicyDocument, groups: Sequence[str]) -> DiffAnswer:
    """The classes that two policies treat differently in a model of these layer groups."""
    _bounded(before, after)
    classes = lint.representative_classes(before, after)
    changes = lint.diff(before, after, classes, groups)
    return DiffAnswer(
        old=str(before),
        new=str(after),
        changes=[ChangeAnswer.model_validate(each) for each in changes[:MAX_CHANGES]],
        more=len(changes) > MAX_CHANGES,
    )


def _bounded(*policies: PolicyDocument) -> None:
    combinations = 1
    for attribute in Match.model_fields:
        rules = (rule for policy in policies for rule in policy.rules)
        named = {value for rule in rules for value in getattr(rule.match, attribute) or ()}
        combinations *= len(named) + 1
    if combinations > MAX_COMBINATIONS:
        raise Problem(
            422,
            "Too much to compare",
            f"The two policies name {combinations:,} combinations of values",
            "Compare them with `govray policy diff`",
        )


@router.get("/policies/{digest}", response_class=Response, responses=ENVELOPE_RESPONSES)
def envelope(visit: VisitDep, digest: DigestPath, if_none_match: IfNoneMatch = None) -> Response:
    """The exact bytes of a signed policy."""
    data = find_policy(visit.session, visit.caller, digest).envelope
    return _sent(visit.caller, data, digest, if_none_match)


@router.post("/policies/{digest}:explain")
def explain(visit: VisitDep, digest: DigestPath, asked: ClassAsked) -> ExplanationAnswer:
    """Which rules decide each layer group's weight for one class of data."""
    policy = _policy(visit, digest)
    groups = _groups(visit, policy, asked)
    cls = _class(asked)
    try:
        explanation = lint.explain(policy, cls, groups)
    except Refused as error:
        raise Problem(422, "The policy refuses this class", error.what, error.do) from None
    decision = explanation.decision
    return ExplanationAnswer.model_validate(
        {
            "policy": str(policy),
            "profile": decision.label,
            "rules": decision.rules,
            "quarantined_by": decision.quarantined_by,
            "adapter": decision.adapter,
            "rank": decision.rank,
            "groups": explanation.groups,
            "phases": explanation.phases,
            "memorization": explanation.memorization,
        }
    )


@router.get("/trust-roots")
def trust_roots(visit: VisitDep, page: PageDep) -> Listing[TrustRootItem]:
    """The trust roots that attestations here were verified against."""
    statement = select(*columns_of(TrustRootRow, TrustRootItem)).where(
        visible_models.trust_roots(visit.caller)
    )
    order = (TrustRootRow.name, TrustRootRow.version, TrustRootRow.digest)
    return page.listing(visit.session, statement, order, TrustRootItem.model_validate)


@router.get("/trust-roots/{digest}", response_class=Response, responses=ENVELOPE_RESPONSES)
def trust_root(visit: VisitDep, digest: DigestPath, if_none_match: IfNoneMatch = None) -> Response:
    """The exact bytes of a trust root: to compare with yours, not to trust because it is here."""
    data = find_trust_root(visit.session, visit.caller, digest).envelope
    return _sent(visit.caller, data, digest, if_none_match)


def _sent(caller: Caller, data: bytes, digest: str, asked: str | None) -> Response:
    return immutable(
        data,
        full_digest(digest),
        public=caller.public,
        asked=asked,
        media_type=DSSE,
    )


def _policy(visit: Visit, digest: str) -> PolicyDocument:
    return policy_document(find_policy(visit.session, visit.caller, digest))


def _groups(visit: Visit, policy: PolicyDocument, asked: ClassAsked) -> tuple[str, ...]:
    if asked.attestation is None:
        return stack(policy, asked.blocks)
    row = find_whole_attestation(visit.session, visit.caller, asked.attestation)
    return tuple(each.group for each in decode(row.lineage).groups if each.kind == "base")


def stack(policy: PolicyDocument, blocks: int) -> tuple[str, ...]:
    """The layer groups of a built-in model of so many blocks, and those of the policy's own."""
    stack = (f"block.{i}" for i in range(blocks))
    return ("embedding", *stack, "final_norm", "head", *(policy.groups or ()))


def _class(asked: ClassAsked) -> CredentialClass:
    try:
        category = asked.license_category or spdx.category(asked.license)
        if category is None:
            raise Malformed(
                f"the licence category does not follow from {asked.license!r}",
                do="State licenseCategory",
            )
        fields = {
            "corpus": asked.corpus,
            "license": spdx.normalise(asked.license),
            "license_category": category,
            "jurisdiction": asked.jurisdiction,
            "sensitivity": asked.sensitivity,
            "use": asked.use or spdx.use(asked.license),
        }
        return CredentialClass.from_source(fields, where="the class")
    except Malformed as error:
        raise unprocessable(f"body: {error.what}", error.do) from None
