"""What HTTP asks of every address: HEAD, Allow, compression, and no parameter that is ignored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from govray.platform.service.http import methods
from govray.platform.service.http.problems import MEDIA_TYPE
from tests.support.library import Library, library
from tests.support.people import PAGE
from tests.support.runs import add_runs


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with library(tmp_path_factory.mktemp("http")) as made:
        add_runs(made.service.engine)
        yield made


HEADED = [
    "/v1/health",
    "/v1/openapi.json",
    "/v1/models/first/versions/1.0.0/lineage",
    "/v1/models/none/versions/1.0.0/lineage",
    "/v1/ledgers/run-first/checkpoint",
    "/v1/runs/done/metrics/stream",
    "/v1/runs/going/metrics/stream",
    "/",
    "/models/first/1.0.0",
    "/static/dom.js",
    "/nothing",
]


@pytest.mark.slow
@pytest.mark.parametrize("path", HEADED)
def test_head_is_the_head_of_get(shelf: Library, path: str) -> None:
    client = shelf.service.client("admin", **PAGE)
    head = client.head(path)
    assert head.content == b""
    if "/stream" in path:  # of one that goes on, the body has no end
        assert head.status_code == 200
        assert head.headers["content-type"].startswith("text/event-stream")
        return
    got = client.get(path)
    assert head.status_code == got.status_code
    changing = {"date", "x-request-id"}
    assert {k: v for k, v in head.headers.items() if k not in changing} == {
        k: v for k, v in got.headers.items() if k not in changing
    }
    assert int(head.headers["content-length"]) > 0


@pytest.mark.parametrize(
    ("method", "path", "takes"),
    [
        ("DELETE", "/v1/health", "GET, HEAD"),
        ("DELETE", "/v1/models/first/versions", "GET, HEAD, POST"),
        ("PUT", "/v1/models/first/versions/1.0.0", "GET, HEAD, PATCH"),
        ("GET", "/v1/attestations:verify", "POST"),
        ("HEAD", "/v1/records:search", "POST"),
        ("POST", "/v1/openapi.json", "GET, HEAD"),
        ("POST", "/static/dom.js", "GET, HEAD"),
        ("PATCH", "/sign-in", "GET, HEAD, POST"),
    ],
)
def test_a_405_says_every_method_that_the_address_takes(
    shelf: Library, method: str, path: str, takes: str
) -> None:
    for headers in ({}, PAGE):
        answer = shelf.service.client("admin", **headers).request(method, path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == takes


@pytest.mark.parametrize(
    ("path", "known"),
    [
        (
            "/v1/experiments?stat=RUNNING",
            "archived, before, cursor, limit, name, pool, project, since, sort, state, tag, user",
        ),
        ("/v1/health?x", None),
        ("/v1/models/first/versions/1.0.0?history=1", "none"),
        ("/v1/ledgers/run-first/proofs/inclusion?index=0&sizes=3", "index, size"),
        ("/models?named=x", "cursor, limit"),
        ("/sign-in?token=secret", "next"),
    ],
)
def test_a_parameter_that_nobody_reads_is_refused(
    shelf: Library, path: str, known: str | None
) -> None:
    answer = shelf.service.client("admin").get(path)
    assert answer.status_code == 422, path
    assert answer.headers["content-type"] == MEDIA_TYPE
    told = answer.json()
    assert told["errors"][0]["message"] == "This address has no such parameter"
    assert told["errors"][0]["field"] in told["detail"]
    assert known is None or known in told["do"]
    assert "secret" not in answer.text


def test_without_the_layer_head_is_a_405(shelf: Library, monkeypatch: pytest.MonkeyPatch) -> None:

    async def through(self: methods.HeadMethod, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        await self.app(scope, receive, send)

    monkeypatch.setattr(methods.HeadMethod, "__call__", through)
    assert shelf.service.client("admin").head("/v1/health").status_code == 405
