"""Usage by project, user, pool or workspace: as JSON and as CSV."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field
from pydantic.alias_generators import to_camel

from govray.governance.formats.document import Timestamp
from govray.platform.service.http.answer import Answer, Decimal
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.pagination import Listing, PageDep
from govray.platform.service.identity.rights import in_projects
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.routes.downloads import CSV, attached, text, written
from govray.platform.store import tables
from govray.platform.store.usage import NOWHERE, By
from govray.platform.store.usage import usage as used

router = APIRouter(tags=["service"], dependencies=[needs("view")])


class Used(Answer):
    """What one project, user, pool or workspace used."""

    name: str
    submitted: int = Field(description="Experiments and tasks that were put in the queue.")
    runs: int
    worker_hours: float
    accelerator_hours: float = Field(description="Hours of what Ray gave a worker as a GPU.")
    bytes: Decimal = Field(description="Of checkpoints that are there now, whatever `since` says.")
    attested: int = Field(description="Attestations in the index of these runs.")


Since = Annotated[
    Timestamp | None,
    Query(description="Runs that started, and what was submitted, then or later."),
]


@router.get("/usage")
def usage(visit: VisitDep, page: PageDep, by: By = "project", since: Since = None) -> Listing[Used]:
    """Accelerator-hours, bytes, what was submitted and attested artifacts, of what you may read.

    A project that nobody made is in no workspace, and counts for the name ``-`` there. So does what
    ran by hand or by a script, among pools.
    """
    items, following = page.part(used_by(visit, by, since), lambda each: each.name)
    return Listing(items=items, next=following)


def used_by(visit: Visit, by: By, since: str | None) -> list[Used]:
    """What each used of what the caller may read, sorted by name."""
    rows = used(
        visit.session,
        at=visit.at,
        by=by,
        since=since,
        experiments=in_projects(visit.caller, tables.ExperimentRow.project),
        entries=in_projects(visit.caller, tables.QueueEntry.project),
    )
    return [Used.model_validate(each) for each in rows]


@router.get(
    "/usage.csv",
    response_class=Response,
    responses={
        200: {
            "description": "One name a line.",
            "content": {
                "text/csv": {
                    "example": "project,submitted,runs,workerHours,acceleratorHours,bytes,"
                    "attested\r\nvision,4,9,12.5,25.0,1024,3\r\n"
                }
            },
        }
    },
)
def usage_csv(visit: VisitDep, by: By = "project", since: Since = None) -> Response:
    """The same as CSV.

    What has no pool or workspace has an empty name. One that a spreadsheet would take for a formula
    has an apostrophe before it.
    """
    numbers = [name for name in Used.model_fields if name != "name"]
    rows = [
        [
            "" if each.name == NOWHERE else text(each.name),
            *(getattr(each, name) for name in numbers),
        ]
        for each in used_by(visit, by, since)
    ]
    return Response(
        written([[by, *map(to_camel, numbers)], *rows]),
        media_type=CSV,
        headers=attached(f"usage-by-{by}.csv"),
    )
