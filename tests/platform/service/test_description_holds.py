"""The service against its own description: generated requests, by everyone."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.people import Service
from tests.support.place import FOREIGN, Place

KINDS = ("admin", "supplier", "public")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
schemathesis.serializer.alias("application/zip", "application/octet-stream")

PUBLIC_WORDS = ("narrow", "policies", "trust-roots", "openapi", ":verify")


@pytest.fixture(scope="module")
def description(place: Place) -> Any:
    return schemathesis.openapi.from_asgi("/v1/openapi.json", place.service.app)


@pytest.fixture(scope="module")
def real(place: Place) -> dict[str, tuple[str, ...]]:
    """Values of path parameters that there are."""
    models = ("first", "guarded", "narrow")
    names = place.names
    return {
        "model": models,
        "version": ("1.0.0",),
        "digest": (names["first"], names["policy"], names["guarded"], names["root"]),
        "run": (*(f"run-{each}" for each in models), "done"),
        "corpus": ("acme", "alpha"),
        "sha256": (names["acme record"], names["alpha record"]),
        "group": (names["group"], "adapter:acme"),
        "experiment": ("e1", "s-one"),
        "step": ("3", "4"),
        "workspace": ("default",),
        "project": ("default",),
        "name": ("rank-0-1.log",),
        "binding": (names["binding"],),
        "case": (names["case"],),
        "user": ("disabled",),
        "token": ("0" * 12,),
        "task": ("s-none",),
        "webhook": ("w-000000000000",),
        "event": ("0" * 64,),
        "index": ("0", "8", "9"),
        "path": ("0/000.p/9", "entries/000.p/9", "model.safetensors"),
    }


def test_answers_are_as_described(
    description: Any, place: Place, real: dict[str, tuple[str, ...]]
) -> None:
    found: dict[str, BaseException] = {}
    for each in description.get_all_operations():
        operation = each.ok()

        @settings(
            max_examples=2, deadline=None, derandomize=True, suppress_health_check=HealthCheck
        )
        @given(case=operation.as_strategy(), choice=st.data())
        def holds(case: schemathesis.Case, choice: st.DataObject) -> None:
            ask(case, place.service)
            if case.path_parameters:
                case.path_parameters = {
                    name: choice.draw(st.sampled_from(real[name])) for name in case.path_parameters
                }
                ask(case, place.service)

        try:
            holds()
        except (Exception, BaseExceptionGroup) as error:
            found[operation.label] = error
    assert not found, "\n\n".join(f"{label}\n{told(each)}" for label, each in found.items())


def told(error: BaseException) -> str:
    """What failed, and of a group each part."""
    if isinstance(error, BaseExceptionGroup):
        return "\n".join(told(each) for each in error.exceptions)
    return f"{error!r} {error}"[:2000]


def ask(case: schemathesis.Case, service: Service) -> None:
    for kind in KINDS:
        token = service.tokens.get(kind)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = case.call(headers=headers)
        case.validate_response(answer, checks=CHECKS)
        url = str(answer.request.url)
        if not any(word in url for word in PUBLIC_WORDS):
            text = answer.content.decode("latin-1")
            for name in FOREIGN.get(kind, ()):
                # What was asked for may be repeated.
                assert name not in text or name in url, (kind, url, name)
