"""Every error is a problem that says what to do, and never more than its reader may know."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import pytest
from fastapi import APIRouter, Query
from pydantic import BaseModel

from govray.errors import Damaged, Malformed, Refused, UsageError
from govray.platform.service.http.problems import MEDIA_TYPE, Problem
from tests.support.people import Service


class Body(BaseModel):
    name: str


@pytest.fixture(scope="module", autouse=True)
def _failing_routes(service: Service) -> None:
    router = APIRouter()

    @router.get("/fail/{how}")
    def fail(how: str, number: Annotated[int, Query(ge=1)] = 1) -> str:
        raise {
            "bug": RuntimeError("secret detail in /srv/govray"),
            "refused": Refused("it is held", where="acme", do="Ask acme"),
            "malformed": Malformed("it is no JSON", where="/srv/govray/x.json"),
            "usage": UsageError("that is no digest"),
            "damaged": Damaged("a stored byte differs", where="/srv/govray/x"),
            "problem": Problem(418, "Teapot", "It is short", "Pour"),
        }[how]

    @router.post("/fail")
    def take(body: Body) -> str:
        return body.name

    service.app.include_router(router)


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("GET", "/nowhere", 404, "/v1/openapi.json"),
        ("DELETE", "/v1/health", 405, "Allow"),
        ("GET", "/fail/refused", 409, "acme: it is held"),
        ("GET", "/fail/malformed", 400, "it is no JSON"),
        ("GET", "/fail/usage", 400, "that is no digest"),
        ("GET", "/fail/problem", 418, "It is short"),
        ("GET", "/fail/usage?number=0", 422, "query.number"),
        ("POST", "/fail", 422, "body"),
        ("GET", "/fail/bug", 500, "urn:govray:error:"),
        ("GET", "/fail/damaged", 500, "urn:govray:error:"),
    ],
)
def test_errors_are_problems(
    service: Service, method: str, path: str, status: int, said: str
) -> None:
    answer = service.client("public").request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == MEDIA_TYPE
    body = answer.json()
    assert body["status"] == status
    assert set(body) >= {"type", "title", "detail"}
    assert said in answer.text
    assert "/srv" not in answer.text
    assert "Traceback" not in answer.text
    assert answer.headers["cache-control"] == "no-store"


def test_the_log_has_the_traceback_under_the_id_that_the_caller_sees(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="govray.platform.service"):
        instance = service.client("public").get("/fail/bug").json()["instance"]
    record = next(each for each in caplog.records if instance in each.getMessage())
    assert record.exc_info is not None
    assert "secret detail" in str(record.exc_info[1])


def test_a_store_that_is_gone_is_a_503(service: Service, tmp_path: Path) -> None:
    from sqlalchemy import create_engine

    engine = service.app.state.engine
    service.app.state.engine = create_engine(f"sqlite:///{tmp_path}/gone/store.db")
    try:
        answer = service.client("public").get("/v1/health")
        alive, ready = (service.client("public").get(f"/v1/{path}") for path in ("live", "ready"))
    finally:
        service.app.state.engine = engine
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert "gone" not in answer.text
    # A restart would not bring the store back; requests go elsewhere meanwhile.
    assert (alive.status_code, ready.status_code) == (200, 503)
    assert service.client("public").get("/v1/ready").status_code == 200
