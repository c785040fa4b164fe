"""Request ids and JSON logs: every answer has an id, and no line has what was asked for."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from govray.platform.service.identity import request_log
from govray.platform.service.identity.request_log import log_as_json
from tests.support.people import Service

LOGGERS = ("", "govray", "govray.platform.service", "uvicorn", "uvicorn.error", "uvicorn.access")


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What this process logs, as JSON; afterwards as before."""
    before = [
        (each, each.handlers[:], each.level, each.propagate)
        for each in map(logging.getLogger, LOGGERS)
    ]
    stream = io.StringIO()
    log_as_json(stream)
    yield stream
    logging.captureWarnings(False)
    for each, handlers, level, propagate in before:
        each.handlers[:], each.propagate = handlers, propagate
        each.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(each) for each in stream.getvalue().splitlines()]


def test_every_answer_has_an_id_of_its_own_or_the_callers(service: Service) -> None:
    client = service.client("engineer")
    first, second = (client.get("/v1/live").headers["x-request-id"] for _ in range(2))
    assert first != second
    for path in ("/v1/runs", "/v1/none", "/v1/runs?nonsense=1", "/", "/static/none"):
        answer = client.get(path, headers={"X-Request-Id": "trace-1.a_b"})
        assert answer.headers["x-request-id"] == "trace-1.a_b", path
        assert answer.headers.get_list("x-request-id") == ["trace-1.a_b"]


def test_a_line_has_the_request_and_nothing_that_was_asked_for(
    service: Service, logged: io.StringIO
) -> None:
    client = service.client("engineer")
    client.get("/v1/runs/private-run/decisions?cursor=sought", headers={"X-Request-Id": "mine"})
    client.post("/v1/records:search", json={"text": "a secret sentence"})
    found = [each for each in lines(logged) if each["logger"] == "govray.platform.service.requests"]
    first, second = found
    assert first["request"] == "mine"
    assert (first["method"], first["status"]) == ("GET", 404)
    assert first["route"] == "/v1/runs/{run}/decisions"
    assert first["run"] == "private-run"
    assert first["level"] == "info"
    assert first["time"].endswith("+00:00")
    assert first["seconds"] >= 0
    assert second["route"] == "/v1/records:search"
    text = logged.getvalue()
    for secret in ("sought", "secret sentence", service.tokens["engineer"]):
        assert secret not in text


def test_tokens_are_cut_and_errors_are_one_line(
    logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    sought = "a secret"

    def fail() -> None:
        try:
            raise ValueError(f"no row\n[SQL: SELECT 1]\n[parameters: {sought!r}]")
        except ValueError:
            logging.getLogger("govray.platform.service").exception("it failed for govr_0123_abc")

    fail()
    [line] = lines(logged)
    assert line["message"] == "it failed for [cut]"
    assert line["error"].endswith("ValueError: no row")
    assert "in fail" in line["error"]
    assert sought not in logged.getvalue()
    # Negative control.
    monkeypatch.setattr(request_log, "without_tokens", lambda text: text)
    fail()
    assert "govr_0123_abc" in logged.getvalue()
