"""Versions by what their attestations state, of one model or of all.

Only versions count whose attestation the caller reads whole: all that is asked about stands in it.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BeforeValidator, Field
from sqlalchemy import select, union_all
from sqlmodel import col

from govray.governance.attestation.model_attestation import AssuranceLevel
from govray.governance.formats.document import NAME
from govray.governance.submission.register_forms import Isolation
from govray.governance.trust.license import LicenseCategory
from govray.platform.service.http.problems import not_valid
from govray.platform.service.identity.pagination import Listing, PageDep, filtered
from govray.platform.service.identity.rights import within
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.routes.models import JUDGED, validation
from govray.platform.service.visible.visible_models import reads_registry, whole_attestations
from govray.platform.store import version_search
from govray.platform.store.registry import Stage
from govray.platform.store.tables import AttestationRow, CorpusUseRow, Inherited, ModelVersion
from govray.platform.store.version_search import VersionSearch
from govray.platform.wire.answers import FoundVersion, VersionReference

router = APIRouter(tags=["models"])

MOST_ASKED = 32
"""Values of one parameter."""

# A form sends a field that nobody filled in as an empty text.
_given = BeforeValidator(lambda value: value or None)
_some = BeforeValidator(lambda values: [each for each in values or () if each != ""])

_Model = Annotated[Annotated[str, Field(pattern=NAME)] | None, _given]
_Text = Annotated[Annotated[str, Field(max_length=2000)] | None, _given]
_Number = Annotated[Annotated[float, Field(allow_inf_nan=False)] | None, _given]
_Levels = Annotated[tuple[AssuranceLevel, ...], Field(max_length=MOST_ASKED), _some]
_Isolations = Annotated[tuple[Isolation, ...], Field(max_length=MOST_ASKED), _some]
_Categories = Annotated[tuple[LicenseCategory, ...], Field(max_length=MOST_ASKED), _some]
_Corpora = Annotated[
    tuple[Annotated[str, Field(max_length=128)], ...], Field(max_length=MOST_ASKED), _some
]


class VersionFilter:
    """The question of a request, with the name of a model and the stage."""

    def __init__(
        self,
        model: _Model = None,
        stage: Annotated[Stage | None, _given, Query(description="In this stage.")] = None,
        best: Annotated[
            bool, Query(description="By validation, the best first; the others are left out.")
        ] = False,
        metric: Annotated[_Text, Query(description="Judged by this metric.")] = None,
        validated_on: Annotated[
            _Text,
            Query(
                alias="validatedOn",
                description="Judged on these corpora, by name, with commas between.",
            ),
        ] = None,
        at_least: Annotated[
            _Number, Query(alias="atLeast", description="Judged at this or above.")
        ] = None,
        at_most: Annotated[
            _Number, Query(alias="atMost", description="Judged at this or below.")
        ] = None,
        assurance: Annotated[_Levels, Query(description="One of these assurance levels.")] = (),
        isolation: Annotated[_Isolations, Query(description="Run in one of these.")] = (),
        license: Annotated[
            _Categories,
            Query(description="A corpus of one of these licence categories reached a layer group."),
        ] = (),
        without_license: Annotated[
            _Categories,
            Query(
                alias="withoutLicense",
                description="None of these licence categories reached a layer group; nor did what "
                "may be of any.",
            ),
        ] = (),
        without_corpus: Annotated[
            _Corpora,
            Query(
                alias="withoutCorpus",
                description="None of these corpora reached a layer group; nor did unknown data.",
            ),
        ] = (),
        group: Annotated[
            str,
            BeforeValidator(lambda value: value or version_search.EVERY_GROUP),
            Query(
                max_length=256,
                pattern=r"^[^*\x00]*\*?$",
                description="The layer groups that are meant: a name, or the beginning of some "
                "before `*`: `block.*`.",
            ),
        ] = version_search.EVERY_GROUP,
        path: Annotated[
            version_search.Path,
            Query(
                description="What counts as reaching: by the own gradient and by the start's "
                "weights (`direct`), or also through other layer groups (`any`)."
            ),
        ] = "direct",
    ) -> None:
        self.model, self.stage, self.best = model, stage, best
        self.question = VersionSearch(
            metric=metric,
            validated_on=validated_on and ",".join(sorted(validated_on.split(","))),
            at_least=at_least,
            at_most=at_most,
            assurance=assurance,
            isolation=isolation,
            license=license,
            without_license=without_license,
            without_corpus=without_corpus,
            group=group,
            path=path,
        )


_STATED: tuple[Any, ...] = (
    AttestationRow.assurance,
    AttestationRow.isolation,
    AttestationRow.finished,
)

AskedDep = Annotated[VersionFilter, Depends()]


@router.get("/versions")
def find(visit: VisitDep, page: PageDep, asked: AskedDep) -> Listing[FoundVersion]:
    """Versions by what their attestations state: by model, or with `best` by validation.

    What an attestation leaves open doesn't count as absent: unknown licences and starts, and layer
    groups that the model has not.
    """
    a, v = AttestationRow, ModelVersion
    _known(visit, asked.question.without_corpus)
    wanted = version_search.matching(asked.question) & whole_attestations(visit.caller)
    if asked.stage is not None:
        wanted &= within(visit.caller)  # a stage is not for who reads the attestation alone
    named = filtered(select(col(v.attestation)), (v.model, asked.model), (v.stage, asked.stage))
    numbers = (v.major, v.minor, v.patch)
    columns = (*numbers, v.model, v.version, v.attestation, v.stage, *JUDGED, *_STATED)
    inside = within(visit.caller).label("within")
    score: tuple[Any, ...] = ()
    if asked.best:
        ours = wanted & col(a.digest).in_(named)
        value, has = version_search.score(visit.session, ours)
        wanted, score = wanted & has, (value,)
    statement = filtered(
        select(*columns, inside, *score).join(a, col(a.digest) == col(v.attestation)).where(wanted),
        *((v.model, asked.model), (v.stage, asked.stage)),
    )
    if asked.best or asked.model is not None:
        order, down = (*score, *numbers, v.model), True
    else:
        order, down = (v.model, *numbers), False
    return page.listing(
        visit.session, statement, order, lambda row: _found(visit, row), descending=down
    )


def _known(visit: Visit, corpora: Any) -> None:
    """Refuse a name that was perhaps mistyped: every model would be without such a corpus."""
    if not corpora:
        return
    u, i, a = CorpusUseRow, Inherited, AttestationRow
    whole = select(col(a.digest)).where(whole_attestations(visit.caller))
    named = union_all(
        select(col(u.corpus)).where(col(u.corpus).in_(corpora), col(u.attestation).in_(whole)),
        select(col(i.source)).where(col(i.source).in_(corpora), col(i.attestation).in_(whole)),
    )
    for each in sorted(set(corpora) - set(visit.session.execute(named).scalars())):
        raise not_valid(
            "query.withoutCorpus",
            f"no attestation that you may read names {each[:128]!r}",
            "Give a corpus's name as an attestation has it",
        )


def _found(visit: Visit, row: Any) -> FoundVersion:
    known = reads_registry(visit.caller, row)
    return FoundVersion(
        **{name: getattr(row, name) for name in VersionReference.model_fields},
        **{name: getattr(row, name) for name in ("assurance", "isolation", "finished")},
        stage=row.stage if known else None,
        validation=validation(row),
    )
