"""The page of what was used, with the same as a file."""

from __future__ import annotations

from datetime import date
from typing import Annotated, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from pydantic import BeforeValidator

from govray.platform.service.identity.visit import VisitDep
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes import usage as routes
from govray.platform.service.visible.readers import RUN_READERS
from govray.platform.store.usage import By

router = APIRouter(dependencies=[RUN_READERS])


@router.get("/usage")
def of_all(
    visit: VisitDep,
    by: By = "project",
    since: Annotated[date | None, BeforeValidator(lambda day: day or None), Query()] = None,
) -> HTMLResponse:
    """``since``: a day, or nothing."""
    start = f"{since}T00:00:00Z" if since else None
    asked = {"by": by} | ({"since": start} if start else {})
    return render(
        visit,
        "usage.html",
        by=by,
        items=routes.used_by(visit, by, start),
        kinds=get_args(By),
        since=since or "",
        file=f"/v1/usage.csv?{urlencode(asked)}",
    )
