"""The pages on the application: their routes, their static files, and errors as pages.

An error is a page for who asked for one: outside ``/v1``, by ``Accept: text/html``. It says what
the problem details of the same error say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from govray.platform.service.http import problems
from govray.platform.service.http.problems import Problem
from govray.platform.service.identity import session_cookie
from govray.platform.service.identity.caller import PUBLIC
from govray.platform.service.identity.session_cookie import COOKIE
from govray.platform.service.pages import (
    cases,
    comparison,
    corpora,
    experiments,
    models,
    new_experiment,
    overview,
    policies,
    queue,
    runs,
    signing_in,
    tasks,
)
from govray.platform.service.pages.rendering import page

_KEPT = ("www-authenticate", "retry-after", "allow")
"""Headers that a problem's page has like its details."""

Handler = Callable[[Request, Exception], Awaitable[Response]]

_STATIC = Path(__file__).parent / "static"
_ASSETS = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}

router = APIRouter(include_in_schema=False)
for _each in (
    *(overview, models, corpora, policies, experiments, runs, comparison, signing_in),
    *(queue, tasks, new_experiment, cases),
):
    router.include_router(_each.router)
router.include_router(cases.requests)


class Assets(StaticFiles):
    """Static files that a browser asks about again: their ETag changes with the version."""

    async def get_response(self, path: str, scope):  # type: ignore[no-untyped-def]
        response = await super().get_response(path, scope)
        response.headers.update(_ASSETS)
        return response


def mount(app: FastAPI) -> None:
    """Put the pages on ``app``, whose error handlers are installed already."""
    app.include_router(router)
    app.mount("/static", Assets(directory=_STATIC), name="static")
    for kind, handler in list(app.exception_handlers.items()):
        if getattr(handler, "__module__", "") == problems.__name__:
            app.add_exception_handler(kind, _as_page(handler))  # type: ignore[arg-type]


def _as_page(handler: Handler) -> Handler:
    async def respond(request: Request, error: Exception) -> Response:
        response = await handler(request, error)
        problem = problems.of(error)
        if problem is None or not _wants_page(request):
            return response
        shown = _page(request, problem, None)
        for name in _KEPT:
            if name in response.headers:
                shown.headers[name] = response.headers[name]
        if problem.status_code == 401:
            # A session that has ended: without its cookie, what is public is there again.
            session_cookie.remove(request, shown, COOKIE)
        return shown

    return respond


def answer(scope: Scope, problem: Problem, instance: str | None) -> Response:
    """What the layers around the routes tell of a problem: a page for who asked for one."""
    request = Request(scope)
    if not _wants_page(request):
        return problems.response(problem, instance)
    shown = _page(request, problem, instance)
    shown.headers.update(problem.headers or {})
    return shown


def _page(request: Request, problem: Problem, instance: str | None) -> Response:
    return page(
        request,
        getattr(request.state, "caller", PUBLIC),
        "problem.html",
        status=problem.status_code,
        code=problem.status_code,
        title=problem.title,
        detail=problem.detail,
        do=problem.do,
        instance=instance,
    )


def _wants_page(request: Request) -> bool:
    path = request.url.path
    return not path.startswith(("/v1/", "/static/", "/metrics")) and "text/html" in (
        request.headers.get("accept", "")
    )
