"""``/v1/live`` and ``/v1/ready`` for what restarts and routes, ``/v1/health``, ``/metrics``."""

from __future__ import annotations

from pathlib import Path
from shutil import disk_usage
from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy import make_url

from govray import __version__
from govray.platform.service.http import store_numbers
from govray.platform.service.http.problems import Problem
from govray.platform.service.http.prometheus import CONTENT_TYPE, Measures
from govray.platform.service.http.session import SessionDep
from govray.platform.service.http.settings import Settings
from govray.platform.service.http.statuses import refusing
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.revocations import Lists
from govray.platform.store.store_secret import trouble

NO_KEY = "the store's secret, without which records are not found"

LEAST_FREE = 16 * 1024 * 1024
"""Bytes of a disk that is not full: of a body at most (`Settings.max_body`)."""

router = APIRouter(tags=["service"])
metrics = APIRouter(tags=["service"])


class Health(BaseModel):
    """The service runs and its store answers.

    Attributes:
        status: ``incomplete`` where something is missing, without which answers would be wrong.
            What depends on it is refused meanwhile.
        missing: What that is.
    """

    status: Literal["ok", "incomplete"]
    version: str
    missing: list[str] = []
    revocations: Literal["current", "notAsked", "couldNotCheck"] = Field(
        description="`couldNotCheck`: a trust root asks for a revocation list, or for a newer one, "
        "that this service does not have. Or a list does not verify. Every answer then has the "
        "header `Govray-Revocations: could-not-check`. `notAsked`: no root asks and no list is "
        "given, so nothing is known of revocations."
    )


class ProbeAnswer(BaseModel):
    """The answer to a probe; anything but 200 is a no."""

    status: Literal["ok"] = "ok"


@router.get("/live")
async def live() -> ProbeAnswer:
    """Whether the process answers. For everyone.

    It asks nothing else: a store that is away is no reason to restart the service.
    """
    return ProbeAnswer()


@router.get("/ready")
def ready(request: Request, session: SessionDep) -> ProbeAnswer:
    """Whether requests should be sent here: the store answers, its secret is there, and so is room
    on the disk. For everyone.

    503 otherwise, with what is missing.
    """
    settings: Settings = request.app.state.settings
    if trouble(session, settings.store):
        do = "Its operator puts the secret's file back; see /v1/health"
        raise Problem(503, "Not ready", f"This service lacks {NO_KEY}", do)
    if disk_is_full(settings):
        raise Problem(503, "Not ready", "A disk that it writes to is full", "Make room on it")
    return ProbeAnswer()


def written(settings: Settings) -> dict[str, Path]:
    """Where this service writes, by what lies there: the file of its store, and its storage, if
    those lie on a disk here."""
    store = make_url(settings.store)
    file = store.database if store.get_backend_name() == "sqlite" else None
    found = {"store": Path(file).absolute().parent} if file else {}
    if isinstance(settings.storage, Path):
        found["storage"] = settings.storage
    return found


def disk_is_full(settings: Settings) -> bool:
    """Whether less than `LEAST_FREE` is left where this service writes."""
    folders = written(settings).values()
    return any(each.is_dir() and disk_usage(each).free < LEAST_FREE for each in folders)


@router.get("/health")
def health(request: Request, session: SessionDep) -> Health:
    """Whether the service can answer: its store is asked. For everyone."""
    missing = [NO_KEY] if trouble(session, request.app.state.settings.store) else []
    lists: Lists = request.app.state.revocations
    found = lists.look()
    known: Literal["current", "notAsked"] = "current" if found.lists else "notAsked"
    return Health(
        status="incomplete" if missing else "ok",
        version=__version__,
        missing=missing,
        revocations="couldNotCheck" if found.lacking else known,
    )


@metrics.get(
    "/metrics",
    dependencies=[needs("view", whole=True)],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **refusing(404)},
)
def numbers(request: Request, session: SessionDep) -> Response:
    """Requests and latencies by route and status, and how queue, attestor and disks stand, in
    Prometheus' text format. For staff.

    404 on Ray Serve, where Ray's metrics agent has them for all replicas.
    """
    measures: Measures = request.app.state.measures
    text = measures.text()
    if text is None:
        raise Problem(
            404,
            "Not found",
            "One replica's numbers are not those of the service",
            "Scrape Ray's metrics agents, which have them of all replicas; see docs/service.md",
        )
    state = request.app.state
    more = store_numbers.text(session, state.clock(), written(state.settings))
    return Response(text + more, media_type=CONTENT_TYPE)
