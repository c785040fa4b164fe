"""The description of the service is complete."""

from __future__ import annotations

import re
from typing import Any

import pytest

from govray.platform.service.http.problems import MEDIA_TYPE
from tests.support.answered import ANSWERED, DECLARED, told, unanswered
from tests.support.described import described
from tests.support.people import Service

OPEN = {"/v1/health", "/v1/live", "/v1/ready", "/v1/sign-in"}
"""Routes that ask nobody who they are."""


@pytest.fixture(scope="module")
def description(service: Service) -> dict[str, Any]:
    answer: dict[str, Any] = service.client("public").get("/v1/openapi.json").json()
    return answer


def operations(description: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method} {path}", operation)
        for path, item in description["paths"].items()
        for method, operation in item.items()
    ]


def test_every_route_says_who_may_and_how_it_fails(description: dict[str, Any]) -> None:
    assert description["openapi"].startswith("3.1")
    for name, operation in operations(description):
        assert operation.get("description"), name
        assert operation.get("tags"), name
        if name.partition(" ")[2] not in OPEN:
            assert {"token": []} in operation["security"], name
        for status, answer in operation["responses"].items():
            assert status < "400" or MEDIA_TYPE in answer["content"], (name, status)
        assert {"200", "201", "204"} & set(operation["responses"]), name
    assert "HTTPValidationError" not in description["components"]["schemas"]
    assert description["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def test_every_operation_has_a_name_of_its_own(description: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, operation in operations(description)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z]+(_[a-z]+)+", name) for name in names)


def test_every_parameter_says_what_it_is(description: dict[str, Any]) -> None:
    silent = [
        f"{name} {parameter['name']}"
        for name, operation in operations(description)
        for parameter in operation.get("parameters", [])
        if not parameter.get("description")
    ]
    assert silent == []


def test_a_route_says_of_itself_what_nothing_else_says(service: Service) -> None:
    """The rest follows from its dependencies, and is in every route's description that has them."""
    paths = service.app.openapi()["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            answers, name = set(operation["responses"]), f"{method} {path}"
            taken = {each["name"] for each in operation.get("parameters", ())}
            assert {"422", "429", "500", "503"} <= answers, name
            assert ("412" in answers) == ("If-Match" in taken), name
            assert ("413" in answers) == ("requestBody" in operation), name
            assert "401" in answers or path in OPEN, name
            assert "409" in answers or "Idempotency-Key" not in taken, name


def test_a_status_that_nothing_answers_is_found(service: Service) -> None:
    """At the end of a run of all tests of the platform: `tests.support.answered`."""
    service.client("admin").get("/v1/users/nobody")
    declared = {"GET /v1/users/{user} 404", "GET /v1/users/{user} 410", "GET /v1/users/{user} 503"}
    assert told[DECLARED] >= declared - {"GET /v1/users/{user} 410"}
    assert unanswered(declared, told[ANSWERED]) == ["GET /v1/users/{user} 410"]


def test_an_answer_that_is_not_described_is_found(
    service: Service, undescribed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = service.client("admin")
    assert admin.get("/v1/users/nobody").status_code == 404
    assert not undescribed
    answers = described(service.app)["/v1/users/{user}"]["get"]["responses"]
    monkeypatch.delitem(answers, "404")
    monkeypatch.delitem(answers["200"], "headers")
    assert admin.get("/v1/users/nobody").status_code == 404
    assert admin.get("/v1/users/admin").headers["etag"]
    assert undescribed == {
        "GET /v1/users/{user} answered 404",
        "GET /v1/users/{user} answered 200 with etag",
    }
    undescribed.clear()
