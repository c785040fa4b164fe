"""The page of a trial's logs: a part of one, a search in it, and its end as it grows. For staff.

The page reads without a script; the script adds lines as they come. A line's colour is by its
words, which say the same to whoever sees none.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from govray.platform.service.identity.visit import VisitDep
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes.experiments import KnownTrial
from govray.platform.service.routes.live_metrics import GOING
from govray.platform.service.routes.logs import LARGEST, LONGEST_SEARCH, folder_of, part_of
from govray.platform.service.visible.readers import RUN_READERS
from govray.platform.store import run_logs

LINES = 500

router = APIRouter(dependencies=[RUN_READERS])

# As `level` in static/logs.js.
_BAD = re.compile(r"\b(error|exception|traceback|fatal|critical|failed|killed)\b", re.I)
_BAD_NAME = re.compile(r"[a-z]Error\b")
_WARN = re.compile(r"\bwarn(ing)?\b", re.I)
_WARN_NAME = re.compile(r"[a-z]Warning\b")


def level(text: str) -> str:
    """The class of a line by its words; empty for most."""
    if _BAD.search(text) or _BAD_NAME.search(text):
        return "bad"
    return "warn" if _WARN.search(text) or _WARN_NAME.search(text) else ""


@router.get("/trials/{trial}/logs")
def of_trial(
    visit: VisitDep,
    known: KnownTrial,
    name: Annotated[str, Query(max_length=64)] = "",
    search: Annotated[str, Query(max_length=LONGEST_SEARCH)] = "",
    start: Annotated[int | None, Query(alias="from", ge=0, le=LARGEST)] = None,
) -> HTMLResponse:
    kept = run_logs.listed(folder_of(visit.session, known))
    # Of the last attempt rank 0, if nobody says which.
    name = name or next((each.name for each in reversed(kept) if "rank-0-" in each.name), "")
    name = name or (kept[0].name if kept else "")
    part = (
        part_of(visit.session, known, name, search=search, start=start, lines=LINES)
        if name
        else None
    )
    live = known.state in GOING and part is not None and not search and start is None
    return render(
        visit,
        "logs.html",
        trial=known,
        kept=kept,
        log=name,
        search=search,
        part=part,
        level=level,
        from_end=start is None and not search,
        stream=f"/v1/trials/{known.id}/logs/{name}/stream?from={part.next}"
        if live and part
        else None,
    )
