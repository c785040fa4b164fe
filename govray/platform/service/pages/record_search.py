"""The page that asks whether a text was used, by its hash.

A script hashes the text in the browser and sends the hash alone (`static/records.js`). Without it
the form sends the text in the body of a request, where no log has it. It is hashed, and neither
stored nor logged. A form is taken from our own pages only.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse

from govray.platform.service.identity.visit import VisitDep
from govray.platform.service.pages.form_fields import form_of
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes.records import answer_of
from govray.platform.service.visible.visibility import CORPUS_READERS, reads_corpora

router = APIRouter()


@router.get("/search")
def form(visit: VisitDep) -> HTMLResponse:
    return render(
        visit, "search.html", reads=reads_corpora(visit.caller), answer=None, missing=False
    )


async def _text(request: Request) -> bytes:
    """The text of the form as the browser had it: a form sends its lines with CRLF."""
    return (await form_of(request)).get("text", "").encode()


@router.post("/search", dependencies=[CORPUS_READERS])
def search(visit: VisitDep, text: Annotated[bytes, Depends(_text)]) -> HTMLResponse:
    """The same answer as the script gives, but for proofs: those are checked in a browser."""
    answer = None
    if text:
        digest = hashlib.sha256(text).hexdigest()
        answer = answer_of(visit, digest, 0)
    return render(
        visit,
        "search.html",
        status=200 if text else 422,
        reads=True,
        answer=answer,
        missing=not text,
    )


@router.get("/views")
def views(visit: VisitDep) -> HTMLResponse:
    return render(visit, "views.html")
