"""The client's operations and documents are those of the service's description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from govray.platform.client import Client
from govray.platform.client.session import answer_of
from govray.platform.service.app import create_app
from govray.platform.service.http.settings import Settings
from govray.platform.service.routes import models
from govray.platform.store.database import open_store
from govray.platform.wire import answers
from govray.platform.wire.operations import Call, Namespace, Pages

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
            for kind in type(namespace).mro():
                for name, each in vars(kind).items():
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


def answered(description: dict[str, Any], each: Call[Any]) -> set[str]:
    """The names of the schemas that an operation answers, or that its listing's items have."""
    responses = description["paths"][each.path][each.method.lower()]["responses"]
    status = next(status for status in responses if status.startswith("2"))
    schema = responses[status]["content"]["application/json"]["schema"]
    if isinstance(each, Pages):
        listing = description["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        schema = listing["properties"]["items"]["items"]
    return {kind["$ref"].rpartition("/")[2] for kind in schema.get("anyOf", [schema])}


def test_documents_are_those_that_are_answered(description: dict[str, Any]) -> None:
    read = {each: answer_of(each) for _, each in operations()}
    documents = {
        each: kind.__name__
        for each, kind in read.items()
        if isinstance(kind, type) and issubclass(kind, BaseModel)
    }
    assert len(documents) > 20
    # A version's history is more than the client's document of a version has.
    answers = {
        each: {name.removesuffix("WithHistory") for name in answered(description, each)}
        for each in documents
    }
    assert [each.path for each, kind in documents.items() if kind not in answers[each]] == []
    experiment: Call[Any] = Call("GET", "/v1/experiments/{experiment}")
    assert answered(description, experiment) == {"Experiment"}  # the control


@pytest.mark.parametrize(
    ("document", "whole", "public"),
    [
        (answers.Model, models.Model, models.ModelName),
        (answers.Version, models.Version, answers.VersionReference),
    ],
)
def test_what_the_public_does_not_see_may_be_absent(
    document: type[BaseModel], whole: type[BaseModel], public: type[BaseModel]
) -> None:
    required = {name for name, field in document.model_fields.items() if field.is_required()}
    assert required == public.model_fields.keys()
    assert document.model_fields.keys() < whole.model_fields.keys()
