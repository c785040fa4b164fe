"""Models and their versions: reading the registry, and writing it.

What each role sees

* Staff see everything of a version, as does who has a role where its run lies.
* Everyone sees name, version and attestation digest, of versions whose attestation is public.
* A supplier sees the same three, also of versions whose run used a corpus of its own.

What a caller may not see answers as if it were not there
(`govray.platform.service.visible`).

Engineers and admins write, with a token of the scope ``write``, those of a project only where all
versions of the model are its own. A write and its entry in the audit
log are one transaction. The service reads and verifies its gates anew at each promotion; a
caller brings none.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy import Select
from sqlmodel import Session, col, select

from govray.errors import CouldNotCheck, GovrayError
from govray.governance.formats.document import NAME
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.trust.trust_state import Verified
from govray.platform.service.http.answer import Body
from govray.platform.service.http.edits import ETAG, IF_MATCH, check_unchanged, tell
from govray.platform.service.http.settings import Settings
from govray.platform.service.http.statuses import refusing
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.pagination import Listing, PageDep, sorting
from govray.platform.service.identity.repeats import OnceDep
from govray.platform.service.identity.revocations import Lists
from govray.platform.service.identity.rights import is_within
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.visible import visible_models
from govray.platform.service.visible.visible_models import (
    check_promotes,
    find_model,
    find_version,
    whole_models,
)
from govray.platform.store import registry, tables
from govray.platform.store.database import begin_writing
from govray.platform.store.promotion_gates import (
    PromotionPolicy,
    unsigned,
    verify_promotion_policy,
)
from govray.platform.store.registry import LONGEST_LABEL, LONGEST_NOTES, MOST_LABELS
from govray.platform.store.reverifications import changes
from govray.platform.wire.answers import JudgedBy, Promoted, VersionReference

router = APIRouter(tags=["models"])

WRITES = needs("promote")

MAX_POLICY = 1 << 20

_NUMBER = "(0|[1-9][0-9]{0,9})"
VERSION = rf"^{_NUMBER}\.{_NUMBER}\.{_NUMBER}$"
DIGEST = "^sha256:[0-9a-f]{64}$"

_ModelName = Annotated[str, Path(pattern=NAME, examples=["python-source-gpt"])]
_VersionName = Annotated[str, Path(pattern=VERSION, examples=["1.4.0"])]
_Word = Annotated[str, Field(pattern=NAME)]
_Labels = Annotated[
    dict[_Word, Annotated[str, Field(max_length=LONGEST_LABEL)]], Field(max_length=MOST_LABELS)
]
_Notes = Annotated[str, Field(max_length=LONGEST_NOTES)]


class ModelName(BaseModel):
    """A model, as suppliers and the public see it."""

    name: str


class Model(ModelName):
    """A model, as staff see it."""

    description: str
    labels: dict[str, str]
    created: str
    user: str
    production: str | None = Field(description="The version in production.")


class Change(BaseModel):
    """What happened to a version. `before` and `after` are stages."""

    at: str
    user: str
    action: str = Field(examples=["model.promote"])
    before: str | None
    after: str | None
    gates: str | None = Field(description="Digest of the gates that it passed.")


class Version(VersionReference):
    """A version, as staff see it."""

    stage: Literal["none", "staging", "production", "archived"]
    labels: dict[str, str]
    validation: JudgedBy | None = Field(description="Absent of a run that was not validated.")
    notes: str
    created: str
    user: str
    public: bool = Field(description="Anyone may read its attestation.")


class Reverified(BaseModel):
    """What verifying a model again gave, for as long as it gave that."""

    outcome: Literal["verified", "failed", "could not check"]
    why: str | None = None
    since: str
    checked: str = Field(description="When it was verified last.")


class VersionWithHistory(Version):
    """A version and everything that happened to it, oldest first."""

    history: list[Change]
    reverified: list[Reverified] = Field(
        description="What verifying it again gave, the newest first; `govray alerts run` does so."
    )


class NewVersion(Body):
    """A version to make of an attestation that the store holds."""

    version: Annotated[str, Field(pattern=VERSION)]
    attestation: Annotated[str, Field(pattern=DIGEST)]
    labels: _Labels = Field(default_factory=dict)
    notes: _Notes = ""


class Annotations(Body):
    """Labels or notes, or both, that take the place of those there are."""

    labels: _Labels | None = None
    notes: _Notes | None = None


class StageRequest(Body):
    """The stage to move to."""

    stage: Literal["staging", "production", "archived"]


@router.get("/models")
def models(visit: VisitDep, page: PageDep) -> Listing[Model | ModelName]:
    """The models of which the caller may see a version, by name."""
    query: Select[Any] = select(tables.ModelRow).where(visible_models.models(visit.caller))
    kept, following = page.rows(visit.session, query, [tables.ModelRow.name])
    whole = whole_models(visit.session, visit.caller, [row.name for row in kept])
    items = [_model(visit.session, row, whole=row.name in whole) for row in kept]
    return Listing(items=items, next=following)


@router.get("/models/{model}")
def model(visit: VisitDep, model: _ModelName) -> Model | ModelName:
    """One model."""
    row = find_model(visit.session, visit.caller, model)
    return _model(
        visit.session, row, whole=model in whole_models(visit.session, visit.caller, [model])
    )


@router.get("/models/{model}/versions")
def versions(
    visit: VisitDep,
    model: _ModelName,
    page: PageDep,
    sort: Annotated[str, sorting("version", "created", "stage")] = "-version",
) -> Listing[Version | VersionReference]:
    """The versions of a model that the caller may see, the highest first."""
    find_model(visit.session, visit.caller, model)
    v = tables.ModelVersion
    query: Any = select(v).where(col(v.model) == model, visible_models.versions(visit.caller))
    name, down = sort.removeprefix("-"), sort.startswith("-")
    first = () if name == "version" else (getattr(v, name),)
    order = (*first, v.major, v.minor, v.patch)
    return page.listing(
        visit.session, query, order, lambda row: _version(visit, row), descending=down
    )


@router.get("/models/{model}/versions/{version}", responses=ETAG)
def version(
    visit: VisitDep, model: _ModelName, version: _VersionName, response: Response
) -> VersionWithHistory | VersionReference:
    """One version; for staff with its history."""
    row = find_version(visit.session, visit.caller, model, version)
    found = _version(visit, row)
    if not isinstance(found, Version):
        return found
    tell(response, [found.labels, found.notes])
    again = [Reverified(**each.model_dump()) for each in changes(visit.session, row.attestation)]
    history = _history(visit.session, row)
    return VersionWithHistory(**found.model_dump(), history=history, reverified=again)


@router.post("/models/{model}/versions", status_code=201, dependencies=[WRITES])
def register(visit: OnceDep, model: _ModelName, new: NewVersion) -> Version:
    """Make a version of an attestation that the store holds; the model too, if it is new.

    The store holds an attestation only if it was verified. `govray model register` verifies and
    indexes a folder first.
    """
    begin_writing(visit.session)  # two that bring the same new name follow one another
    check_promotes(visit.session, visit.caller, model, new.attestation)
    row = registry.register(visit.session, model=model, by=visit.by, **new.model_dump())
    visit.session.commit()
    return _full(visit.session, row)


@router.patch("/models/{model}/versions/{version}", dependencies=[WRITES, IF_MATCH])
def annotate(
    visit: VisitDep, model: _ModelName, version: _VersionName, given: Annotations
) -> Version:
    """Replace the labels or notes of a version. Nothing else of it can be changed."""
    row = find_version(visit.session, visit.caller, model, version)
    check_promotes(visit.session, visit.caller, model)
    begin_writing(visit.session)
    visit.session.refresh(row)
    check_unchanged(visit.request, [row.labels, row.notes])
    row = registry.annotate(
        visit.session, name=model, version=version, by=visit.by, **given.model_dump()
    )
    visit.session.commit()
    return _full(visit.session, row)


@router.post(
    "/models/{model}/versions/{version}:promote", dependencies=[WRITES], responses=refusing(409)
)
def promote(
    visit: VisitDep, model: _ModelName, version: _VersionName, change: StageRequest
) -> Promoted:
    """Move a version to a stage, if all gates before it hold.

    What fails is in `detail`, all of it, and nothing is changed. A version in production is
    archived when another takes its place.
    """
    find_version(visit.session, visit.caller, model, version)
    check_promotes(visit.session, visit.caller, model)
    lists: Lists = visit.request.app.state.revocations
    if change.stage == "archived":
        done = registry.archive(visit.session, name=model, version=version, by=visit.by)
    else:
        done = registry.promote(
            visit.session,
            name=model,
            version=version,
            stage=change.stage,
            policy=promotion_policy(visit.request),
            by=visit.by,
            standing=lists.look(),
        )
    visit.session.commit()
    return Promoted(
        model=model,
        version=done.version.version,
        before=done.before,
        after=done.after,
        replaced=done.replaced,
    )


def promotion_policy(request: Request) -> Verified[PromotionPolicy]:
    """The service's gates, which its trust root carries now.

    Raises:
        CouldNotCheck: Nobody can be asked, or no trust root says whose signature counts.
        Refused: They are not signed, or not by an authority for policies.
    """
    state = request.app.state
    settings: Settings = state.settings
    lists: Lists = state.revocations
    path, at = settings.promotion, state.clock()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_POLICY + 1)
    except OSError:
        if path.with_name(path.name.replace(".dsse.json", ".yaml")).is_file():
            raise unsigned(path.name) from None
        raise CouldNotCheck(
            "this service has no promotion policy, so nothing can be promoted",
            do="Its operator names one; policies/promotion.yaml of the deployment, once signed, is "
            "such a file",
        ) from None
    try:
        anchor = TrustAnchor.read(settings.trust_root, lists.readable()[0]).as_feed()
    except GovrayError as error:  # without its path, which is the operator's
        raise CouldNotCheck(
            f"the signature of the promotion gates cannot be checked: {error.what}",
            do="The service's operator names the root: govray serve --trust-root FILE",
        ) from None
    return verify_promotion_policy(anchor.load(at=at), data, at=at, where=path.name)


def _model(session: Session, row: tables.ModelRow, *, whole: bool) -> Model | ModelName:
    if not whole:
        return ModelName(name=row.name)
    current = registry.latest(session, row.name, stage="production")
    return Model(**row.model_dump(), production=current.version if current else None)


def _version(visit: Visit, row: tables.ModelVersion) -> Version | VersionReference:
    if is_within(visit.session, visit.caller, row.attestation):
        return _full(visit.session, row)
    return VersionReference(**row.model_dump())


def _full(session: Session, row: tables.ModelVersion) -> Version:
    a = tables.AttestationRow
    stated = session.execute(select(*JUDGED, a.public).where(col(a.digest) == row.attestation))  # type: ignore[call-overload]
    found = stated.one()
    return Version(**row.model_dump(), public=found.public, validation=validation(found))


_A = tables.AttestationRow
JUDGED: tuple[Any, ...] = (_A.metric, _A.goal, _A.value, _A.validated_on)
"""The columns that `validation` reads."""


def validation(row: Any) -> JudgedBy | None:
    """What a row with the columns `JUDGED` says."""
    if row.metric is None:
        return None
    corpora = [each for each in row.validated_on.split(",") if each]
    return JudgedBy(metric=row.metric, goal=row.goal, value=row.value, corpora=corpora)


def _history(session: Session, row: tables.ModelVersion) -> list[Change]:
    return [
        Change(
            at=each.at,
            user=each.user,
            action=each.action,
            before=each.detail.get("from"),
            after=each.detail.get("to"),
            gates=each.detail.get("gates"),
        )
        for each in registry.history(session, row.model, row.version)
    ]
