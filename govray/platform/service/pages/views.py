"""The page on which a browser checks a view of an attestation.

It has no data of the service: the view and the trust root are the reader's, and stay in the
browser. So it is there for everybody.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from govray.platform.service.identity.access import CallerDep
from govray.platform.service.pages.rendering import render

router = APIRouter()


@router.get("/views")
def views(request: Request, caller: CallerDep) -> HTMLResponse:
    return render(request, caller, "views.html")
