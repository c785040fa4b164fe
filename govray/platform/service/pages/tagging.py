"""The form that puts tags on an experiment: taken from our own pages, by who may write.

What is refused comes back in the form with the reason, as nothing that was typed should be lost.
"""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.access import AuditDep, CallerDep
from govray.platform.service.pages.experiments import experiment_page
from govray.platform.service.pages.form_fields import form_of
from govray.platform.service.pages.rendering import HEADERS
from govray.platform.service.routes.experiments import KnownExperiment
from govray.platform.service.routes.tags import TAGGERS, check_tagging, tag
from govray.platform.store.experiment_tags import MOST_TAGS, TAG

router = APIRouter(dependencies=[TAGGERS])

_LONGEST = 2000
"""Characters of the field: more than the tags that an experiment may have."""


async def _given(request: Request) -> str:
    return (await form_of(request)).get("tags", "")[:_LONGEST]


@router.post("/experiments/{experiment}/tags")
def save(
    request: Request,
    known: KnownExperiment,
    caller: CallerDep,
    session: SessionDep,
    audit: AuditDep,
    given: Annotated[str, Depends(_given)],
) -> Response:
    """Replace the tags, and show the experiment again."""
    check_tagging(session, caller, known)
    tags = list(dict.fromkeys(given.split()))
    wrong = [each for each in tags if re.fullmatch(TAG, each) is None]
    why = ""
    if wrong:
        why = f"“{wrong[0][:80]}” is no tag."
    elif len(tags) > MOST_TAGS:
        why = f"These are {len(tags)} tags."
    if why:
        return experiment_page(request, known, caller, session, tags_given=given, tags_wrong=why)
    tag(session, audit, known.id, tags)
    there = f"/experiments/{quote(known.id, safe='')}"
    return RedirectResponse(there, status_code=303, headers=HEADERS)
