"""Request ids and JSON logs: every answer has an id, and no line has what was asked for."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from govray.service import request_log
from govray.service.request_log import log_as_json
from govray.store.database import open_store
from tests.support.people import Service

LOGGERS = ("", "govray", "govray.service", "uvicorn", "uvicorn.error", "uvicorn.access")


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
    for path in ("/v1/trials", "/v1/none", "/v1/trials?nonsense=1", "/", "/static/none"):
        answer = client.get(path, headers={"X-Request-Id": "trace-1.a_b"})
        assert answer.headers["x-request-id"] == "trace-1.a_b", path
        assert answer.headers.get_list("x-request-id") == ["trace-1.a_b"]


@pytest.mark.parametrize("given", ["a b", "x" * 65, "", "a\tb", '{"a":1}', "ä"])
def test_what_is_no_id_is_replaced(service: Service, given: str) -> None:
    headers = [(b"x-request-id", given.encode())]
    answer = service.client("public").get("/v1/live", headers=headers)
    assert len(answer.headers["x-request-id"]) == 16
    assert answer.headers["x-request-id"] != given


def test_a_line_has_the_request_and_nothing_that_was_asked_for(
    service: Service, logged: io.StringIO
) -> None:
    client = service.client("engineer")
    client.get("/v1/trials/private-run/decisions?cursor=sought", headers={"X-Request-Id": "mine"})
    client.post("/v1/records:search", json={"text": "a secret sentence"})
    found = [each for each in lines(logged) if each["logger"] == "govray.service.requests"]
    first, second = found
    assert first["request"] == "mine"
    assert (first["method"], first["status"]) == ("GET", 404)
    assert first["route"] == "/v1/trials/{trial}/decisions"
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
            logging.getLogger("govray.service").exception("it failed for govr_0123_abc")

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


@pytest.mark.slow
def test_the_command_logs_as_json_uvicorn_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url, create=True).dispose()
    words = ["serve", "--store", url, "--no-auth", "--port", "0", "--log-format", "json"]
    with subprocess.Popen(
        [sys.executable, "-c", "from govray.cli import main; raise SystemExit(main())", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as served:
        assert served.stdout is not None
        address = served.stdout.readline().split()[2]
        assert httpx.get(f"{address}v1/live", headers={"X-Request-Id": "one"}).status_code == 200
        served.send_signal(signal.SIGTERM)
        _, errors = served.communicate(timeout=60)
    found = [json.loads(each) for each in errors.splitlines() if each.startswith("{")]
    assert any(each.get("request") == "one" for each in found)
    assert any(each.get("route") == "/v1/live" for each in found)
