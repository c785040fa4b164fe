"""Which statuses a route answers besides its own, and with which headers, as the description says.

A dependency says by `refuses` what it raises, and a route by ``responses=refusing(409)`` what its
own text does. The rest follows from the layers around routes, and from what a route takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from fastapi import Depends
from fastapi.routing import APIRoute

from govray.platform.service.http.problems import RESPONSES
from govray.platform.service.http.settings import Settings

Call = TypeVar("Call", bound=Callable[..., Any])

_raised: dict[object, frozenset[int]] = {}
"""Dependency → the statuses that it raises."""

_ASKED = {"Idempotency-Key": 409, "If-Match": 412}
"""Header of a request → the answer to one that does not hold."""

OF_ALL = (422, 500, 503)
"""What each route may answer."""

_HEADERS = {
    "Retry-After": "Seconds to wait.",
    "Idempotency-Replayed": "`true`: the answer of an earlier request with this key.",
    "ETag": "Names what is answered, as it is now.",
    "Location": "Its address.",
}


def refuses(*statuses: int) -> Callable[[Call], Call]:
    """Says of a dependency what it raises."""

    def mark(call: Call) -> Call:
        _raised[call] = frozenset(statuses)
        return call

    return mark


def refusing(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What the text of a route raises, for ``responses=``."""
    return {each: RESPONSES[each] for each in statuses}


def header(name: str) -> dict[str, Any]:
    """A header of an answer, as the description has it."""
    return {name: {"description": _HEADERS[name], "schema": {"type": "string"}}}


async def _any_name() -> None:
    pass


ANY_NAME = Depends(_any_name)
"""Of a route that finds nothing by its path, so that no name is a 404."""


def describe_answers(
    paths: dict[str, dict[str, Any]], routes: Iterable[tuple[str, APIRoute]], settings: Settings
) -> None:
    """Put into each operation of a description what its route may answer. ``routes``: each with
    its whole path."""
    for path, route in routes:
        for method in route.methods or ():
            operation = paths[path][method.lower()]
            answers = operation["responses"]
            taken = {each["name"] for each in operation.get("parameters", ())}
            found = _derived(route, operation, settings)
            found |= {status for name, status in _ASKED.items() if name in taken}
            for status in found:
                answers.setdefault(str(status), dict(RESPONSES[status]))
            late = {"429", "503"}
            if "Idempotency-Key" in taken:
                late |= {"409"}
                _give(answers, [each for each in answers if each < "300"], "Idempotency-Replayed")
            _give(answers, late & answers.keys(), "Retry-After")
            _give(answers, {"304"} & answers.keys(), "ETag")
            operation["responses"] = dict(sorted(answers.items()))


def _derived(route: APIRoute, operation: dict[str, Any], settings: Settings) -> set[int]:
    """What follows from the layers, from the route's dependencies and from what it takes."""
    found = {429} if settings.auth else set()
    found |= {421} if settings.hosts else set()
    calls = set(_calls(route.dependant))
    for call in calls:
        found |= _raised.get(call, frozenset())
    if not settings.auth and 401 in found:  # of pages of another site
        found = found - {401} | {403}
    if "{" in route.path_format and _any_name not in calls:
        found.add(404)
    parameters = operation.get("parameters", ())
    if "requestBody" in operation:
        found |= {400, 413}
    if any(each["in"] != "header" and _free(each["schema"]) for each in parameters):
        found.add(400)  # a store that holds no U+0000
    return found


def _calls(dependant: Any) -> Iterable[object]:
    yield dependant.call
    for each in dependant.dependencies:
        yield from _calls(each)


def _free(schema: dict[str, Any]) -> bool:
    """Whether a parameter is any text."""
    if "anyOf" in schema:
        return any(map(_free, schema["anyOf"]))
    bounds = ("pattern", "enum", "format", "const", "$ref")
    return schema.get("type") == "string" and not any(each in schema for each in bounds)


def _give(answers: dict[str, Any], statuses: Iterable[str], name: str) -> None:
    for status in statuses:
        headers = {**answers[status].get("headers", {}), **header(name)}
        answers[status] = {**answers[status], "headers": headers}
