"""The client's operations and documents are those of the service's description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from govray.platform.client import Client
from govray.platform.client.operations import Call, Namespace, Pages
from govray.platform.service.app import create_app
from govray.platform.service.http.settings import Settings
from govray.platform.store.database import open_store

STREAMS = {"live_metrics_stream", "logs_stream"}
CLIENT = Client("http://127.0.0.1:9")


@pytest.fixture(scope="module")
def description(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    store = f"sqlite:///{tmp_path_factory.mktemp('store') / 'govray.db'}"
    open_store(store, create=True).dispose()
    described: dict[str, Any] = create_app(Settings(store=store)).openapi()
    return described


def operations() -> Iterator[tuple[str, Call[Any]]]:
    for noun, namespace in vars(CLIENT).items():
        if isinstance(namespace, Namespace):
            for name, each in vars(type(namespace)).items():
                if isinstance(each, Call):
                    yield f"{noun}.{name}", each


def test_every_operation_of_the_service_is_one_of_the_client(description: dict[str, Any]) -> None:
    described = {
        (method.upper(), path)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
        if operation["operationId"] not in STREAMS
    }
    here = [(each.method, each.path) for _, each in operations()]
    assert set(here) == described
    assert len(here) == len(described)


def schema_of(description: dict[str, Any], each: Call[Any]) -> dict[str, Any]:
    """The schema of the answer, or of a listing's item, with all that alternatives have."""
    responses = description["paths"][each.path][each.method.lower()]["responses"]
    answers = [responses[status] for status in responses if status.startswith("2")]
    return resolved(description, answers[0]["content"]["application/json"]["schema"], each)


def resolved(description: dict[str, Any], schema: dict[str, Any], each: Any) -> dict[str, Any]:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return resolved(description, description["components"]["schemas"][name], each)
    if "anyOf" in schema:
        kinds = [resolved(description, kind, each) for kind in schema["anyOf"]]
        required = set.intersection(*(set(kind["required"]) for kind in kinds))
        properties: dict[str, Any] = {}
        for kind in kinds:
            properties |= kind["properties"]
        return {"properties": properties, "required": required}
    if isinstance(each, Pages) and "items" in schema.get("properties", {}):
        return resolved(description, schema["properties"]["items"]["items"], None)
    return schema


def unlike(document: type[BaseModel], schema: dict[str, Any]) -> Iterator[str]:
    for name, field in document.model_fields.items():
        known = schema["properties"].get(field.alias or name)
        if known is None:
            yield f"{document.__name__}.{name} is not answered"
        elif field.is_required() and (field.alias or name) not in schema["required"]:
            yield f"{document.__name__}.{name} may be absent"
        elif {"type": "null"} in known.get("anyOf", []) and type(None) not in get_args(
            field.annotation
        ):
            yield f"{document.__name__}.{name} may be null"


def test_documents_have_fields_that_are_answered(description: dict[str, Any]) -> None:
    typed = [each for _, each in operations() if isinstance(each.answer, type)]
    documents = [each for each in typed if issubclass(each.answer, BaseModel)]
    assert len(documents) > 20
    assert [
        wrong for each in documents for wrong in unlike(each.answer, schema_of(description, each))
    ] == []


def test_a_field_that_is_gone_would_be_seen(description: dict[str, Any]) -> None:
    each = Call("GET", "/v1/experiments/{experiment}", BaseModel)
    schema = schema_of(description, each)

    class Older(BaseModel):
        forgotten: str
        position: int

    assert list(unlike(Older, schema)) == [
        "Older.forgotten is not answered",
        "Older.position may be absent",
    ]
