"""The application: routes, and around them the layers that every request passes.

From the outside in, the layers give requests their ids (`request_log`), count them (`prometheus`)
and turn ``HEAD`` into ``GET`` without a body (`methods`). They compress answers (`answer`),
bound rate, body and time (`limits`) and check ``Host``. An unforeseen error becomes a 500
(`problems.CatchAll`). Then FastAPI routes. Unknown query parameters are refused before a route runs
(`parameters`). The caller is found by the routes' own dependency (`access.CallerDep`).

One application holds one engine and what it remembers of tokens and rates; two of them, or two
processes, share the store and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from anyio import CapacityLimiter
from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from sqlmodel import Session
from starlette.types import ASGIApp, Receive, Scope, Send

from govray import __version__, traces
from govray.errors import Refused
from govray.platform.service.acting.case_desk import CaseDesk, search_bound
from govray.platform.service.acting.experiment_check import Check
from govray.platform.service.http import problems
from govray.platform.service.http.answer import Compressed
from govray.platform.service.http.limits import Buckets, Limits
from govray.platform.service.http.methods import HeadMethod
from govray.platform.service.http.parameters import (
    describe_parameters,
    known_parameters,
    operation_id,
)
from govray.platform.service.http.problems import (
    Answering,
    CatchAll,
    Problem,
    ProblemDetails,
    details,
)
from govray.platform.service.http.prometheus import Measured, Measures, Registered, TracedRequests
from govray.platform.service.http.settings import Settings
from govray.platform.service.http.statuses import OF_ALL, describe_answers, refusing
from govray.platform.service.identity import repeats
from govray.platform.service.identity.access import AccessGate
from govray.platform.service.identity.adapter_rights import AdapterRights, read_rights
from govray.platform.service.identity.audit_log import Refusals
from govray.platform.service.identity.code_flow import code_flow
from govray.platform.service.identity.oidc import Oidc
from govray.platform.service.identity.request_log import RequestIds
from govray.platform.service.identity.revocations import Lists, Marked
from govray.platform.service.pages import site
from govray.platform.service.routes import (
    archives,
    attestations,
    audit_log,
    cases,
    corpora,
    deletions,
    downloads,
    experiments,
    files,
    health,
    ledgers,
    lineage,
    live_metrics,
    logs,
    memorization,
    models,
    pins,
    policies,
    projects,
    records,
    role_bindings,
    runs,
    sign_in,
    tasks,
    tokens,
    usage,
    version_search,
    webhooks,
)
from govray.platform.service.visible.near_records import NearSearch
from govray.platform.store.database import open_store
from govray.platform.store.store_secret import trouble

DESCRIPTION = """\
What was trained on what, from signed records. Bytes that were signed are served as they are, so \
whoever reads them can check them without trusting this service. Counts are decimal strings. \
Errors are problem details (RFC 9457)."""

# In the order of the description. A new one is named here.
_BELOW_V1 = (
    *(health, sign_in, audit_log, experiments, pins, deletions, runs, archives, downloads),
    *(files, live_metrics, logs, models, version_search, lineage, corpora, records, ledgers),
    *(attestations, policies, memorization, cases, projects, role_bindings, tokens, webhooks),
    *(tasks, usage),
)


def create_app(
    settings: Settings,
    *,
    measures: Measures | None = None,
    check: Check | None = None,
    near: NearSearch | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> FastAPI:
    """The application over the store that ``settings`` name.

    Args:
        measures: Where numbers go, if not to this application's own ``/metrics``.
        check: What knows the schema of experiment files. Without one none can be submitted.
        near: What finds near copies in corpora at hand. Without one, cases look for none.

    Raises:
        Refused: The secret at hand is not the one that the store is indexed under.
    """
    engine = open_store(settings.store, statement_limit=settings.time_limit)
    with Session(engine) as session:
        # One that is missing may still come; `/v1/health` says so meanwhile.
        if isinstance(wrong := trouble(session, settings.store), Refused):
            engine.dispose()
            raise wrong
    measures = measures or Registered()
    oidc = Oidc(settings.oidc) if settings.oidc else None

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        engine.dispose()

    app = FastAPI(
        title="govray",
        version=__version__,
        description=DESCRIPTION,
        openapi_url="/v1/openapi.json",
        docs_url=None,  # its page loads scripts of another host
        redoc_url=None,
        redirect_slashes=False,
        responses=refusing(*OF_ALL),
        generate_unique_id_function=operation_id,
        dependencies=[Depends(known_parameters)],
        lifespan=lifespan,
    )
    app.state.settings = settings
    app.state.engine = engine
    app.state.measures = measures
    app.state.clock = clock
    app.state.check = check
    app.state.register = settings.attestor.client() if settings.attestor else None
    app.state.streams = live_metrics.Streams(settings.max_streams, "live streams")
    app.state.downloads = live_metrics.Streams(settings.max_streams, "downloads")
    app.state.rights = read_rights(settings.rights) if settings.rights else AdapterRights()
    app.state.revocations = Lists(engine, settings.revocations, clock, pinned=settings.pinned)
    app.state.checks = CapacityLimiter(settings.max_checks)
    app.state.uploads = 0
    app.state.archive_uploads = archives.Uploads()
    app.state.refusals = Refusals(engine)
    app.state.cases = CaseDesk.of(settings, near)
    app.state.gate = AccessGate(
        engine,
        Buckets(settings.rate, settings.burst, time.monotonic),
        auth=settings.auth,
        verify=oidc.verify if oidc else None,
        clock=clock,
    )
    app.state.code_flow = code_flow(settings.oidc, oidc) if settings.oidc and oidc else None
    app.state.clock = clock
    problems.install(app)
    for each in _BELOW_V1:
        app.include_router(each.router, prefix="/v1")
    app.include_router(health.metrics)
    site.mount(app)
    # The one added last is the outermost.
    repeats.install(app)
    app.add_middleware(Marked, lists=app.state.revocations)
    app.add_middleware(CatchAll, answering=site.answer)
    if settings.hosts:
        app.add_middleware(Hosts, hosts=frozenset(settings.hosts), answering=site.answer)
    app.add_middleware(
        Limits,
        max_body=settings.max_body,
        max_stranger_body=settings.max_stranger_body,
        known=app.state.gate.known,
        count=app.state.gate.count,
        time_limit=settings.time_limit,
        wider=lambda scope: archives.bound(scope) or search_bound(scope, settings.max_body),
        answering=site.answer,
    )
    app.add_middleware(Compressed)
    app.add_middleware(HeadMethod)
    app.add_middleware(Measured, measures=measures)
    if traces.wanted():
        app.add_middleware(TracedRequests)
    app.add_middleware(RequestIds)
    app.openapi = lambda: _describe(app)  # type: ignore[method-assign]
    return app


class Hosts:
    """The layer that answers only to names of its own."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], answering: Answering = details) -> None:
        self.app = app
        self.hosts = hosts
        self.answering = answering

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _host(scope) not in self.hosts:
            refusal = Problem(
                421,
                "Another host",
                "This service does not answer to that name",
                f"Ask for one of {', '.join(sorted(self.hosts))}",
            )
            await self.answering(scope, refusal, None)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _host(scope: Scope) -> str:
    """The name in the ``Host`` header, without its port."""
    for name, value in scope["headers"]:
        if name == b"host":
            text: str = value.decode("latin-1")
            return text[: text.index("]") + 1] if text.startswith("[") else text.partition(":")[0]
    return ""


def _describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI 3.1 description, made once."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
        )
        reference = "#/components/schemas/{model}"
        problem = ProblemDetails.model_json_schema(ref_template=reference)
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(problem.pop("$defs"))
        schemas["ProblemDetails"] = problem
        describe_parameters(schema)
        routers = [("/v1", each.router) for each in _BELOW_V1] + [("", health.metrics)]
        routes = [
            (prefix + each.path_format, each)
            for prefix, router in routers
            for each in router.routes
            if isinstance(each, APIRoute) and each.include_in_schema
        ]
        describe_answers(schema["paths"], routes, app.state.settings)
        # Without a token the caller is public; which routes serve the public is in their text.
        for path in schema["paths"].values():
            for operation in path.values():
                if "security" in operation:
                    operation["security"].append({})
        app.openapi_schema = schema
    return app.openapi_schema
