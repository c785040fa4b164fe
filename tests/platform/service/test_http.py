"""What HTTP asks of every address: HEAD, Allow, compression, and no parameter that is ignored."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from govray.platform.service.http import methods
from govray.platform.service.http.compression import SMALLEST
from govray.platform.service.http.problems import MEDIA_TYPE
from tests.support.library import Library, library
from tests.support.runs import add_runs

PAGE = {"accept": "text/html"}


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
    "/v1/trials/done/metrics/stream",
    "/v1/trials/going/metrics/stream",
    "/",
    "/models/first/1.0.0",
    "/static/verify.js",
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


def test_head_is_counted_as_itself_and_by_its_route(shelf: Library) -> None:
    shelf.service.client("admin").head("/v1/health")
    text = shelf.service.client("admin").get("/metrics").text
    assert 'method="HEAD",route="/v1/health",status="200"' in text


def test_head_gets_nobody_in(shelf: Library) -> None:
    assert shelf.service.client("public").head("/v1/trials").status_code == 401
    assert shelf.service.client("supplier").head("/v1/corpora/alpha").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "takes"),
    [
        ("DELETE", "/v1/health", "GET, HEAD"),
        ("DELETE", "/v1/models/first/versions", "GET, HEAD, POST"),
        ("PUT", "/v1/models/first/versions/1.0.0", "GET, HEAD, PATCH"),
        ("GET", "/v1/attestations:verify", "POST"),
        ("HEAD", "/v1/records:search", "POST"),
        ("POST", "/v1/openapi.json", "GET, HEAD"),
        ("POST", "/static/verify.js", "GET, HEAD"),
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


def test_what_allow_says_is_what_is_taken(shelf: Library) -> None:
    """No method that it names is a 405, and each that it does not name is one."""
    client = shelf.service.client("public")
    for path in ("/v1/models/x/versions", "/v1/models/x/versions/1.0.0", "/v1/health", "/"):
        says = client.request("OPTIONS", path).headers["allow"].split(", ")
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
            refused = client.request(method, path).status_code == 405
            assert refused != (method in says), (method, path)


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/v1/experiments?stat=ACTIVE", "cursor, limit, name, project, state, tag, user"),
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


def test_known_parameters_are_taken(shelf: Library) -> None:
    client = shelf.service.client("admin")
    for path in (
        "/v1/experiments?state=ACTIVE&limit=1",
        "/v1/trials/done/metrics?archived=true&name=loss",
        "/v1/policies:diff?from={0}&to={0}",
        "/experiments?state=ACTIVE",
        "/attestations/{1}?rows=all&named=a",
    ):
        policy = client.get("/v1/policies").json()["items"][0]["digest"]
        digest = shelf.digest("first").removeprefix("sha256:")
        assert client.get(path.format(policy, digest)).status_code == 200, path


def test_long_answers_are_compressed_for_who_takes_it(shelf: Library) -> None:
    path = "/v1/models/first/versions/1.0.0/lineage"
    client = shelf.service.client("admin")
    plain = client.get(path, headers={"accept-encoding": "identity"})
    packed = client.get(path, headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert "accept-encoding" in packed.headers["vary"].lower()
    assert packed.content == plain.content  # httpx has unpacked it
    assert len(plain.content) >= SMALLEST
    assert int(packed.headers["content-length"]) < len(plain.content) / 3
    assert int(packed.headers["content-length"]) >= len(gzip.compress(plain.content)) / 2
    refused = client.get(path, headers={"accept-encoding": "gzip;q=0, identity"})
    assert "content-encoding" not in refused.headers


def test_signed_bytes_and_tiles_go_as_they_are(shelf: Library) -> None:
    client = shelf.service.client("admin", **{"accept-encoding": "gzip"})
    envelope = client.get(f"/v1/attestations/{shelf.digest('first')}")
    size = shelf.model("first").ledger.size
    for answer in (envelope, client.get(f"/v1/ledgers/run-first/tile/entries/000.p/{size}")):
        assert answer.status_code == 200
        assert "content-encoding" not in answer.headers
        assert answer.headers["etag"].startswith('"')


def test_a_script_in_gzip_has_a_weak_tag_that_leads_to_a_304(shelf: Library) -> None:
    client = shelf.service.client("public", **{"accept-encoding": "gzip"})
    got = client.get("/static/verify.js")
    assert got.headers["content-encoding"] == "gzip"
    assert got.headers["etag"].startswith('W/"')
    again = client.get("/static/verify.js", headers={"if-none-match": got.headers["etag"]})
    assert again.status_code == 304


def test_without_the_layer_head_is_a_405(shelf: Library, monkeypatch: pytest.MonkeyPatch) -> None:

    async def through(self: methods.HeadMethod, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        await self.app(scope, receive, send)

    monkeypatch.setattr(methods.HeadMethod, "__call__", through)
    assert shelf.service.client("admin").head("/v1/health").status_code == 405
