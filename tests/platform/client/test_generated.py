"""The client is what the generator writes of the service's description today."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from typing import Any

import pytest

from govray.platform.client import Client
from tests.support.tree import ROOT


@pytest.fixture(scope="module")
def builder() -> Any:
    spec = importlib.util.spec_from_file_location("build_client", ROOT / "docs" / "build_client.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def description(builder: Any) -> Any:
    return builder.openapi()


def test_the_client_is_that_of_this_description(builder: Any, description: Any) -> None:
    for name, text in builder.modules(description).items():
        kept = (ROOT / "govray" / "platform" / "client" / name).read_text()
        assert kept == text, f"{name} is old: run python docs/build_client.py"


def test_a_change_of_the_description_would_be_seen(builder: Any, description: Any) -> None:
    """Negative control."""
    path = description["paths"]["/v1/submissions/{submission}:stop"]["post"]
    changed = {**path, "operationId": "halt_submission"}
    whole = {**description, "paths": {"/v1/submissions/{submission}:stop": {"post": changed}}}
    text = builder.modules(whole)["operations.py"]
    assert "def halt_submission(self, submission: str) -> documents.QueueEntry:" in text
    assert text != (ROOT / "govray" / "platform" / "client" / "operations.py").read_text()


def test_every_operation_has_its_method(builder: Any, description: Any) -> None:
    named = {
        operation["operationId"]
        for methods in description["paths"].values()
        for operation in methods.values()
    }
    methods = {name for name, _ in inspect.getmembers(Client, inspect.isfunction)}
    assert named - builder.LEFT_OUT <= methods
    for name in named - builder.LEFT_OUT:
        assert inspect.getdoc(getattr(Client, name)), name
